/* What if the walk had taken another candidate? The greedy successors and the target's own continuation come with the
 * step (Python's core/trace/whatif.py defines both); here they are only followed. */

import { range } from "./numbers.js";
import { STATE_WORDS } from "./step.js";
import { bdi, h } from "./dom.js";
import { tell } from "./moves.js";

/** The path with candidate `r` at position `j`: {path, accepted, known, exact}; null if it was not recorded. */
export function whatIf(step, j, r) {
  if (!step.next || !step.path || step.path[j] === undefined) return null;
  const path = [...step.path.slice(0, j), r];
  for (let i = j + 1; i < step.depth; i++) path.push(step.next[i][path[i - 1]]);
  const { known } = step.lengths;
  let accepted = 0;
  while (accepted < known && step.ids[accepted][path[accepted]] === step.continuation[accepted]) accepted++;
  return { path, accepted, known, exact: accepted < known || known === step.depth };
}

/** How position `i` of another path stands: a state, or "unknown" where the target never said. */
export function whatIfState({ accepted, known, exact }, i) {
  if (i < accepted) return "accepted";
  if (!exact && i >= known) return "unknown";
  return i === accepted ? "mismatch" : "unchecked";
}

/** Takes the focused candidate into the path, or leaves it if it is that one already. */
export function toggleWhatIf(view) {
  const { current: step, pos, rank } = view;
  if (!step?.depth) return undefined;
  const same = view.picked?.j === pos && view.picked.r === rank;
  if (!same && step.path[pos] === rank) return tell(view, "This candidate is on the path: move to another one.");
  if (!same && !whatIf(step, pos, rank)) return tell(view, "The candidates or the path were not recorded.");
  setPicked(view, same ? null : { j: pos, r: rank });
  if (view.picked) tell(view, whatIfSentence(step, pos, rank));
  return undefined;
}

/** True if there was another path to take back. */
export function dropWhatIf(view) {
  const had = view.picked !== null;
  if (had) setPicked(view, null);
  return had;
}

function setPicked(view, picked) {
  view.picked = picked;
  view.parts.forEach((part) => part.repaint?.());
}

/** What comes of it, in words that do not claim what is not known. */
export function whatIfSentence(step, j, r) {
  const { accepted, known, exact } = whatIf(step, j, r);
  const change = accepted - step.acc;
  const beside =
    change === 0 ? "as it was" : `${Math.abs(change)} ${change > 0 ? "more" : "fewer"} than the ${step.acc} it was`;
  if (exact) return `${accepted} of ${step.depth} accepted, ${beside}.`;
  return `At least ${accepted} of ${step.depth} accepted: the text ends here, and what the target says after position ${known} is not known.`;
}

export function buildWhatIf(view) {
  const box = h("div", { class: "dfl-panel-part dfl-whatif" });
  const update = () => view.current && paintWhatIf(view, box);
  view.parts.push({ move: () => (view.picked = null), step: update, repaint: update, cell: update });
  return box;
}

function paintWhatIf(view, box) {
  const { current: step, pos, rank, picked } = view;
  box.hidden = !step.depth || !step.next;
  if (box.hidden) return;
  const on = step.path[pos] === rank;
  const same = picked?.j === pos && picked.r === rank;
  const button = h(
    "button",
    { type: "button", class: "dfl-button", hidden: on && !same, title: "w", onclick: () => toggleWhatIf(view) },
    ...(same ? ["back to the path"] : ["take ", bdi(step.at(pos, rank), "dfl-mono"), ` at ${pos + 1}`]),
  );
  const hint = "Move to a candidate beside the path and take it (w): the walk goes on greedily from there.";
  box.replaceChildren(
    h("h3", { text: "What if" }),
    ...(picked ? paintOutcome(view, picked) : [h("p", { class: "dfl-dim", text: hint })]),
    button,
  );
}

function paintOutcome({ current: step, summary }, { j, r }) {
  const way = whatIf(step, j, r);
  const chip = (i) => {
    const state = whatIfState(way, i);
    const words = state === "unknown" ? "not known" : STATE_WORDS[state];
    const token = bdi(step.at(i, way.path[i]));
    return h("span", { class: `dfl-w-chip dfl-w-${state}`, title: `position ${i + 1}: ${words}` }, token);
  };
  const drawn = summary.greedy ? "" : " Judged against the tokens that were drawn.";
  return [
    h("p", {}, bdi(step.at(j, r), "dfl-mono"), ` at ${j + 1}: `, h("b", { text: whatIfSentence(step, j, r) }), drawn),
    h("p", { class: "dfl-w-chips" }, ...range(step.depth).map(chip)),
  ];
}
