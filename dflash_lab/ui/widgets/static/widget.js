/* Hosts the inspector in a notebook: joined behind inspector.js by base.py, loaded by anywidget.
 *
 * Traits step and pos go both ways; steps come as messages: {get: i} is answered by {step: i} with the step's JSON as
 * a buffer, or by {step: i, error}. {select: {step, pos, rank}} says where the user moved, {stop: true} ends a decode.
 */

/** A busy kernel answers late, one that is gone never. */
const PATIENCE_MS = 20000;

/** Steps asked of the kernel: `get(i)` promises step i. */
function kernelSteps(model) {
  const waiting = new Map();
  const settle = ({ step, error }, buffers) => {
    const request = waiting.get(step);
    if (!request) return;
    waiting.delete(step);
    clearTimeout(request.timer);
    if (error) request.reject(new Error(error));
    else request.resolve(JSON.parse(new TextDecoder().decode(buffers[0])));
  };
  model.on("msg:custom", settle);
  const get = (i) =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        waiting.delete(i);
        reject(new Error("the kernel does not answer, it is busy or gone"));
      }, PATIENCE_MS);
      waiting.set(i, { resolve, reject, timer });
      model.send({ get: i });
    });
  const stop = () => {
    model.off("msg:custom", settle);
    waiting.forEach(({ timer }) => clearTimeout(timer));
  };
  return { get, stop };
}

/** The trace of `model` in `el`, at the model's step; returns what takes it away again. */
function showTrace(model, el) {
  const steps = kernelSteps(model);
  const place = () => ({ step: model.get("step"), pos: model.get("pos") });
  let shown = place();
  const dispose = mount(el, {
    summary: model.get("summary"),
    getStep: steps.get,
    initial: shown,
    onSelect: ({ step, pos, rank }) => {
      shown = { step, pos: pos || null };
      Object.entries(shown).forEach(([name, value]) => model.set(name, value));
      model.save_changes();
      model.send({ select: { step, pos, rank } });
    },
  });
  const follow = () => {
    const { step, pos } = place();
    if (step === shown.step && pos === shown.pos) return;
    shown = { step, pos };
    dispose.show(shown);
  };
  const events = ["change:step", "change:pos"];
  events.forEach((event) => model.on(event, follow));
  return () => {
    events.forEach((event) => model.off(event, follow));
    steps.stop();
    dispose();
  };
}

const ORIGIN_CLASS = { accepted: "dfl-o-accepted", corrected: "dfl-o-correction", bonus: "dfl-o-bonus" };

/** A decode while it runs, and its trace below once it is over; returns what takes both away again. */
function showLive(model, el) {
  const state = h("strong", { role: "status" });
  const numbers = h("span", { class: "dfl-dim" });
  const stop = h("button", { type: "button", class: "dfl-button", text: "Stop", onclick: () => model.send({ stop: true }) });
  const text = h("div", { class: "dfl-text", tabindex: "0", role: "region", "aria-label": "Output text", dir: "auto" });
  const root = h("div", { class: "dfl" }, h("p", {}, state, " ", numbers, " ", stop), text);
  const below = h("div");
  const run = { root, host: {}, parts: [], undo: [] };
  let leave = null;
  const paint = () => {
    const told = model.get("message");
    state.textContent = told ? `${model.get("state")}: ${told}` : model.get("state");
    stop.hidden = !["waiting", "running"].includes(model.get("state"));
    numbers.textContent = numbersLine(model.get("numbers"));
    text.replaceChildren(
      ...model.get("parts").map(([origin, piece]) =>
        h("span", { class: `dfl-tok ${ORIGIN_CLASS[origin] ?? ""}`, text: piece }),
      ),
    );
    if (!leave && model.get("summary").n) {
      leave = showTrace(model, below);
      text.hidden = true; // the trace shows it
    }
  };
  el.append(root, below);
  followTheme(run);
  paint();
  const events = ["state", "message", "parts", "numbers", "summary"].map((name) => `change:${name}`);
  events.forEach((event) => model.on(event, paint));
  return () => {
    events.forEach((event) => model.off(event, paint));
    run.undo.forEach((undo) => undo());
    leave?.();
  };
}

function numbersLine({ steps, tokens, acceptance_length: length, tok_s: rate }) {
  if (!tokens) return "";
  const facts = [`${tokens} tokens in ${steps} steps`];
  if (length) facts.push(`acceptance length ${length.toFixed(2)}`);
  if (rate) facts.push(`${rate.toFixed(1)} tok/s`);
  return facts.join(" · ");
}

export default {
  render({ model, el }) {
    el.classList.add("dflw", `dflw-${model.get("_show")}`);
    keepKeys(el);
    return model.get("_show") === "live" ? showLive(model, el) : showTrace(model, el);
  },
};
