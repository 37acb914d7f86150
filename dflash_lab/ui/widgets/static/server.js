/* Hosts the live view in a notebook: joined behind live.js by server.py, loaded by anywidget.
 *
 * Trait view is what is shown. {plotly: true} is answered by the same with Plotly's packed script as a buffer;
 * {stop: true} ends watching.
 */

/** Plotly from the kernel, once for a page: it is as large as all else together. */
function kernelPlotly(model) {
  window.dflashPlotly ??= new Promise((resolve, reject) => {
    const take = async ({ plotly }, buffers) => {
      if (!plotly) return;
      model.off("msg:custom", take);
      try {
        const unpacked = new Blob([buffers[0]]).stream().pipeThrough(new DecompressionStream("gzip"));
        resolve(await loadScript(await new Response(unpacked).blob()));
      } catch (error) {
        window.dflashPlotly = undefined;
        reject(error);
      }
    };
    model.on("msg:custom", take);
    model.send({ plotly: true });
  });
  return window.dflashPlotly;
}

/** The Plotly of a script. A notebook may have one of its own, of another version: that stays where it is. */
function loadScript(blob) {
  const before = window.Plotly;
  const script = document.createElement("script");
  script.src = URL.createObjectURL(new Blob([blob], { type: "text/javascript" }));
  return new Promise((resolve, reject) => {
    script.onload = () => {
      const ours = window.Plotly;
      if (before) window.Plotly = before;
      URL.revokeObjectURL(script.src);
      resolve(ours);
    };
    script.onerror = () => reject(new Error("the page does not let Plotly run"));
    document.head.append(script);
  });
}

export default {
  render({ model, el }) {
    el.classList.add("dflw");
    keepKeys(el);
    const live = mountLive(el, { plotly: () => kernelPlotly(model), onStop: () => model.send({ stop: true }) });
    const show = () => live.show(model.get("view"));
    show();
    model.on("change:view", show);
    return () => {
      model.off("change:view", show);
      live.dispose();
    };
  },
};
