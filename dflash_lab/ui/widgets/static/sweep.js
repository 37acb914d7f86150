/* Hosts a sweep's grid in a notebook: joined behind sweep.js by sweep.py, loaded by anywidget.
 *
 * Traits slice, metric and selected go both ways; {get: key} is answered by {key, cell}.
 */

/** A busy kernel answers late, one that is gone never. */
const CELL_PATIENCE_MS = 20000;

/** What the kernel knows of a cell. */
function kernelCell(model, key) {
  return new Promise((resolve, reject) => {
    const settle = (answer) => {
      if (answer.key !== key) return;
      leave();
      if (answer.cell) resolve(answer.cell);
      else reject(new Error("this cell did not run"));
    };
    const timer = setTimeout(() => {
      leave();
      reject(new Error("the kernel does not answer, it is busy or gone"));
    }, CELL_PATIENCE_MS);
    const leave = () => {
      clearTimeout(timer);
      model.off("msg:custom", settle);
    };
    model.on("msg:custom", settle);
    model.send({ get: key });
  });
}

export default {
  render({ model, el }) {
    el.classList.add("dflw");
    keepKeys(el);
    const set = (change) => {
      Object.entries(change).forEach(([name, value]) => model.set(name, value));
      model.save_changes();
    };
    const sweep = mountSweep(el, {
      metric: model.get("metric"),
      getCell: (key) => kernelCell(model, key),
      onSlice: (slice) => set({ slice }),
      onMetric: (metric) => set({ metric }),
      onSelect: (selected) => set({ selected }),
    });
    const show = () => sweep.show(model.get("view"));
    const stand = () => sweep.select(model.get("selected"));
    const measure = () => sweep.measure(model.get("metric"));
    const heard = { "change:view": show, "change:selected": stand, "change:metric": measure };
    show();
    stand();
    Object.entries(heard).forEach(([event, hear]) => model.on(event, hear));
    return () => {
      Object.entries(heard).forEach(([event, hear]) => model.off(event, hear));
      sweep.dispose();
    };
  },
};
