/* What the reader can switch, and what of it is remembered: under one key, the same in every host. */

const KEY = "dflash-lab-inspector";

/** By field of the view: [value, label, meaning] of each choice, the first by default. */
export const OPTIONS = {
  fill: [
    ["p", "p", "Fill and number: draft probability (of the full vocabulary)"],
    ["logit", "logit", "Fill and number: unary score, the drafter's logit"],
    ["score", "score", "Fill and number: unary + edge from the path's predecessor"],
  ],
  lines: [
    ["focus", "focus", "Lines: the path, and the five strongest edges into the cell pointed at or moved to"],
    ["all", "all", "Lines: the strongest edge into every cell"],
    ["path", "path", "Lines: the path only"],
  ],
  order: [
    ["unary", "rank", "Rows: by unary score, the drafter's own order"],
    ["score", "score", "Rows: by unary + edge from the path's predecessor, the order the walk sees"],
  ],
  dense: [
    [false, "normal", "Grid with tokens and numbers"],
    [true, "dense", "Dense grid: fills only"],
  ],
  layer: [
    ["origin", "origin", "Text: marked by where each token comes from"],
    ["p", "probability", "Text: the darker, the less probable the target found the token"],
    ["margin", "margin", "Text: the darker, the nearer the target's two best tokens were; dotted: a tie at rounding level"],
    ["plain", "plain", "Text: exactly as decoded"],
  ],
};

/** The remembered choice of every option, or its default. */
export function readOptions() {
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    // No storage in this host, or not ours in it.
  }
  const known = (name) => OPTIONS[name].some(([value]) => value === kept[name]);
  return Object.fromEntries(
    Object.entries(OPTIONS).map(([name, choices]) => [name, known(name) ? kept[name] : choices[0][0]]),
  );
}

function keepOptions(view) {
  const kept = Object.fromEntries(Object.keys(OPTIONS).map((name) => [name, view[name]]));
  try {
    localStorage.setItem(KEY, JSON.stringify(kept));
  } catch {
    // No storage in this host: the choice lasts as long as the view.
  }
}

export function setOption(view, name, value) {
  view[name] = value;
  keepOptions(view);
  view.parts.forEach((part) => {
    part.choice?.();
    part.repaint?.();
  });
}

/** The next choice of an option, of those that this trace has. */
export function nextOption(view, name) {
  const choices = offered(view, name);
  const at = choices.findIndex(([value]) => value === view[name]);
  return choices[(at + 1) % choices.length];
}

/** The choices that make sense for this trace. */
export function offered(view, name) {
  const known = { p: view.layers?.p, margin: view.layers?.margin };
  return name === "layer" ? OPTIONS.layer.filter(([value]) => known[value] !== null) : OPTIONS[name];
}
