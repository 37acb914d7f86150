/* Keys and their sheet. */

import { clamp } from "./numbers.js";
import { h } from "./dom.js";
import { focusCell, go, jump, place, tell, togglePlay } from "./moves.js";
import { askStep, cycle } from "./bar.js";
import { closeCard, pin } from "./detail.js";
import { endTour } from "./tour.js";
import { dropWhatIf, toggleWhatIf } from "./whatif.js";

const KEYS = [
  ["← →  or  , .", "previous, next step"],
  ["PgUp PgDn", "ten steps back, on"],
  ["Home End", "first, last step"],
  ["n  N", "next, previous rejection, or step that the filter leaves"],
  ["g", "go to step…"],
  ["/", "filter steps: text, accepted = 0, cause = drafter"],
  ["Space", "play, pause"],
  ["Shift ← →", "position in the block"],
  ["↑ ↓", "candidate in the column"],
  ["Enter", "pin the cell"],
  ["w", "what if: take this candidate"],
  ["p", "fill: probability, logit, score"],
  ["r", "rows: by rank, by selector score"],
  ["e", "edges: focus, all, path"],
  ["d", "dense grid"],
  ["l", "text: origin, probability, margin, plain"],
  ["f", "full screen"],
  ["y", "copy permalink"],
  ["?", "this sheet"],
  ["Esc", "close, back to the path, unpin, then leave"],
];

export function buildSheet(view) {
  const offered = KEYS.filter(([key]) => key !== "y" || view.host.onPermalink);
  const rows = offered.map(([key, what]) =>
    h("tr", {}, h("th", { scope: "row" }, h("kbd", { text: key })), h("td", { text: what })),
  );
  const close = h("button", { type: "button", class: "dfl-button", text: "Close", onclick: () => toggleSheet(view) });
  const sheet = h(
    "div",
    { class: "dfl-sheet", role: "dialog", "aria-label": "Keys", tabindex: "-1" },
    h("h3", { text: "Keys" }),
    h("table", {}, h("tbody", {}, ...rows)),
    close,
  );
  sheet.hidden = true;
  view.sheet = sheet;
  view.toggleSheet = () => toggleSheet(view);
  return sheet;
}

function toggleSheet(view) {
  const { sheet, root } = view;
  sheet.hidden = !sheet.hidden;
  if (!sheet.hidden) {
    sheet.style.top = `${Math.max(16, 80 - root.getBoundingClientRect().top)}px`;
    view.back = root.contains(document.activeElement) ? document.activeElement : root;
    sheet.focus({ preventScroll: true });
  } else view.back?.focus({ preventScroll: true });
}

function leave(view) {
  if (!view.sheet.hidden) return toggleSheet(view);
  if (endTour(view)) return undefined;
  if (closeCard(view) || dropWhatIf(view)) return undefined;
  if (view.pins.size) {
    view.pins.clear();
    return view.paintPins();
  }
  return document.activeElement.blur();
}

function toggleFullScreen(view) {
  if (document.fullscreenElement) document.exitFullscreen();
  else view.root.requestFullscreen?.().catch(() => tell(view, "The browser did not allow full screen."));
}

function moveColumn(view, by) {
  if (!view.current?.depth) return;
  const pos = clamp(view.pos + by, 0, view.current.depth - 1);
  focusCell(view, pos, view.current.path[pos], { card: true });
}

/** To the row above or below, in the order in which the rows stand. */
function moveRow(view, by) {
  const order = view.grid.orders[view.pos];
  if (!view.current?.depth) return;
  const row = clamp(order.indexOf(view.rank) + by, 0, order.length - 1);
  focusCell(view, view.pos, order[row], { card: true });
}

const ACTIONS = {
  ArrowLeft: (view, event) => (event.shiftKey ? moveColumn(view, -1) : go(view, view.step - 1)),
  ArrowRight: (view, event) => (event.shiftKey ? moveColumn(view, 1) : go(view, view.step + 1)),
  ",": (view) => go(view, view.step - 1),
  ".": (view) => go(view, view.step + 1),
  ArrowUp: (view) => moveRow(view, -1),
  ArrowDown: (view) => moveRow(view, 1),
  PageUp: (view) => go(view, view.step - 10),
  PageDown: (view) => go(view, view.step + 10),
  Home: (view) => go(view, 0),
  End: (view) => go(view, view.n - 1),
  n: (view) => jump(view, 1),
  N: (view) => jump(view, -1),
  g: askStep,
  "/": (view) => view.find?.focus(),
  " ": togglePlay,
  Enter: pin,
  w: toggleWhatIf,
  p: (view) => cycle(view, "fill"),
  e: (view) => cycle(view, "lines"),
  r: (view) => cycle(view, "order"),
  d: (view) => cycle(view, "dense"),
  l: (view) => view.layers && cycle(view, "layer"),
  f: toggleFullScreen,
  y: (view) => view.host.onPermalink?.(place(view)),
  "?": toggleSheet,
  Escape: leave,
};

export function onKey(view, event) {
  const { target, key } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, [contenteditable]"))
    return;
  if ((key === "Enter" || key === " ") && target.closest("button, summary, a")) return;
  const action = ACTIONS[key];
  if (!action) return;
  event.preventDefault();
  event.stopPropagation();
  action(view, event);
}
