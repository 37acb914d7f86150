/* The tour: six stops, each of which waits until the reader has done what it asks. */

import { h, nextFrame } from "./dom.js";
import { go, say } from "./moves.js";

/** Per stop: what to look at, what to do, and whether an event of the view means that it was done. */
const STOPS = [
  {
    at: ".dfl-strip",
    text: "Every bar is one verification step, as high as what the target accepted of its block. Below it, where the time went. Go to another step: click a bar, or press → in the strip.",
    done: (view, event) => event === "move",
  },
  {
    at: ".dfl-scroll",
    text: "Columns are positions, rows the drafter's candidates. The line is the path: one candidate per position, together the proposal. Move along it: Shift →, or click a cell on the line.",
    done: (view, event) => event === "cell" && view.rank === view.current.path[view.pos],
  },
  {
    at: ".dfl-grid thead",
    text: "✓ and a solid outline: accepted, the target agrees. ✗ and a dashed outline: the first mismatch. Hatched: not used. Go to a step that accepted something.",
    done: (view, event) => event === "step" && view.current.acc > 0,
  },
  {
    at: ".dfl-ring",
    needs: (summary) => summary.steps.cause.indexOf("selector"),
    text: "The amber ring is the token that the target wanted instead. Here it was in the list, and the selector took another. Move onto it: ↑ ↓, or click it.",
    done: ({ current, pos, rank }, event) =>
      event === "cell" && pos === current.acc && rank + 1 === current.wantedRank,
  },
  {
    at: ".dfl-edgemap",
    text: "Edge scores: what the selector adds for this token after that one; orange for, violet against. Lines in the grid are the strongest into a cell. Press e, or move to another cell.",
    done: (view, event) => event === "choice" || event === "cell",
  },
  {
    at: ".dfl-panel",
    text: "Why the step ended, and what other paths would have kept: no selector, this one, a perfect one. Go to the next rejection: n.",
    done: (view, event) => event === "step" && !view.current.full,
  },
];

export function buildTour(view) {
  const card = h("div", { class: "dfl-tour", role: "dialog", "aria-label": "Tour" });
  card.hidden = true;
  view.tour = { card, stop: -1, target: null, setting: false };
  const heard = (event) => () => hear(view, event);
  view.parts.push({ move: heard("move"), step: heard("step"), cell: heard("cell"), choice: heard("choice") });
  return card;
}

export function startTour(view) {
  showStop(view, 0);
}

/** True if there was a tour to end. */
export function endTour(view) {
  const { tour } = view;
  if (tour.stop < 0) return false;
  tour.stop = -1;
  tour.card.hidden = true;
  tour.target?.classList.remove("dfl-tour-at");
  return true;
}

function hear(view, event) {
  const { tour } = view;
  if (tour.stop < 0 || tour.setting || !view.current || !STOPS[tour.stop].done(view, event)) return;
  showStop(view, tour.stop + 1);
}

function showStop(view, index) {
  endTour(view);
  const stop = STOPS[index];
  if (!stop) return say(view, "End of the tour. Press ? for all keys.");
  const wanted = stop.needs ? stop.needs(view.summary) : view.step;
  if (wanted < 0) return showStop(view, index + 1);
  const { tour } = view;
  tour.stop = index;
  tour.setting = true;
  if (wanted !== view.step) go(view, wanted);
  return nextFrame(view, "tour", () => drawStop(view, index));
}

async function drawStop(view, index) {
  const { tour, root } = view;
  await view.store.get(view.step).catch(() => null);
  tour.setting = false;
  if (tour.stop !== index) return;
  const { at, text } = STOPS[index];
  const button = (label, action) => h("button", { type: "button", class: "dfl-button", text: label, onclick: action });
  tour.card.replaceChildren(
    h("p", {}, h("b", { text: `${index + 1} of ${STOPS.length}` }), ` · ${text}`),
    button("Skip", () => showStop(view, index + 1)),
    button("End the tour", () => endTour(view)),
  );
  tour.card.hidden = false;
  tour.target = root.querySelector(at) ?? root.querySelector(".dfl-scroll");
  tour.target.classList.add("dfl-tour-at");
  putBeside(tour.card, tour.target, root.getBoundingClientRect());
  say(view, `Tour, ${index + 1} of ${STOPS.length}. ${text}`);
}

/** Below what is low; inside what is high at its right end, or left of it where it is narrow. */
function putBeside(card, target, outer) {
  const box = target.getBoundingClientRect();
  const high = box.height > 300;
  const end = box.width > 1.5 * card.offsetWidth ? box.right : box.left;
  const left = (high ? end - card.offsetWidth - 12 : box.left + 12) - outer.left;
  card.style.left = `${Math.max(8, Math.min(left, outer.width - card.offsetWidth - 12))}px`;
  card.style.top = `${(high ? box.top + 50 : box.bottom + 10) - outer.top}px`;
  card.scrollIntoView({ block: "nearest" });
}
