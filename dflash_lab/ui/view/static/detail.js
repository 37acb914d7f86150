/* Hover card and detail panel. */

import { range, score } from "./numbers.js";
import { CAUSE_WORDS, causeSentence, cellFacts } from "./step.js";
import { bdi, cellOf, h } from "./dom.js";
import { buildPictures } from "./picture.js";
import { buildWhatIf } from "./whatif.js";

export function buildCard(view) {
  const card = h("div", { class: "dfl-card", role: "tooltip", id: `${view.uid}-card` });
  card.hidden = true;
  card.addEventListener("pointerleave", () => closeCard(view));
  view.card = card;
  view.parts.push({
    move: () => closeCard(view),
    cell: (moved, asked) => asked && openCard(view, view.pos, view.rank),
  });
  return card;
}

export function openCard(view, j, r) {
  const { card, root } = view;
  const cell = cellOf(view.grid, j, r);
  if (!cell) return;
  card.replaceChildren(...factSheet(view.current, j, r), h("p", { class: "dfl-dim", text: "Enter or click pins it" }));
  card.hidden = false;
  view.grid.table.setAttribute("aria-describedby", card.id);
  const outer = root.getBoundingClientRect();
  const rect = cell.getBoundingClientRect();
  const right = rect.right - outer.left + 8;
  const fits = right + card.offsetWidth < outer.width;
  card.style.left = `${fits ? right : Math.max(0, rect.left - outer.left - card.offsetWidth - 8)}px`;
  card.style.top = `${rect.top - outer.top + rect.height + 4}px`;
}

export function closeCard(view) {
  const open = view.card && !view.card.hidden;
  if (open) {
    view.card.hidden = true;
    view.grid.table.removeAttribute("aria-describedby");
  }
  return open;
}

function factSheet(step, j, r) {
  const rank = step.hasUnary ? `rank ${r + 1} of ${step.rows}` : "proposal";
  const facts = cellFacts(step, j, r).flatMap(([label, text]) => [h("dt", { text: label }), h("dd", { text })]);
  return [
    h(
      "div",
      { class: "dfl-fact-head" },
      bdi(step.at(j, r), "dfl-mono"),
      h("span", { class: "dfl-dim", text: `position ${j + 1} · sequence ${step.start + j + 1} · ${rank}` }),
    ),
    h("dl", { class: "dfl-facts" }, ...facts),
  ];
}

export function pin(view) {
  const { current: step, pos, rank, pins } = view;
  if (!step?.depth) return;
  const key = `${step.i}:${pos}:${rank}`;
  if (pins.has(key)) pins.delete(key);
  else pins.set(key, { step, pos, rank });
  view.paintPins();
}

export function buildDetail(view) {
  const cause = h("div", { class: "dfl-panel-part" });
  const lengths = h("div", { class: "dfl-panel-part" });
  const sums = h("div", { class: "dfl-panel-part" });
  const pins = h("div", { class: "dfl-panel-part dfl-pins" });
  const update = () => paintSums(view, sums);
  view.parts.push({
    step: () => {
      paintCause(view.current, cause);
      paintLengths(view.current, lengths);
      update();
    },
    cell: update,
  });
  view.paintPins = () => paintPins(view, pins);
  view.paintPins();
  return h("aside", { class: "dfl-panel", "aria-label": "Detail" }, cause, lengths, sums, buildWhatIf(view), pins, buildPictures(view));
}

function paintCause(step, box) {
  const miss = step.depth && !step.full && step.cause !== "stop" ? ` at position ${step.acc + 1}` : "";
  const title = step.depth ? CAUSE_WORDS[step.cause] + miss : "autoregressive";
  box.replaceChildren(
    h("h3", { text: title[0].toUpperCase() + title.slice(1) }),
    h("p", { text: causeSentence(step) }),
  );
}

function paintLengths(step, box) {
  box.hidden = !step.depth;
  if (!step.depth) return;
  const { argmax, selected, best, known } = step.lengths;
  const row = (label, value, title) => {
    const bar = h("i", { class: "dfl-length-bar" });
    bar.style.width = `${(100 * (value ?? 0)) / (step.depth + 1)}%`;
    return [
      h("dt", { text: label, title }),
      h("dd", {}, h("span", { class: "dfl-length" }, bar), h("b", { text: value ?? "·" })),
    ];
  };
  box.replaceChildren(
    h("h3", { text: "Acceptance length by path" }),
    h(
      "dl",
      { class: "dfl-lengths" },
      ...row("rank-1 path", argmax, "1 + what rank 1 at every position would have kept"),
      ...row("selected", selected, "1 + what the path that was taken kept"),
      ...row("best in grid", best, "1 + what the best path through these candidates would have kept"),
    ),
    h("p", {
      class: "dfl-dim",
      text: `with the bonus, of ${step.depth + 1}${known < step.depth ? `; the text is known for ${known} positions only` : ""}`,
    }),
  );
}

function paintSums(view, box) {
  const { current: step, pos: j } = view;
  const usable = step.depth && step.hasUnary && step.path[j] < step.width && step.path[j] >= 0;
  box.hidden = !usable;
  if (!usable) return;
  const chosen = step.path[j];
  const others = range(step.width)
    .filter((r) => r !== chosen)
    .sort((a, b) => step.score(j, b) - step.score(j, a));
  const row = (label, r) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", text: label }),
      h("td", { class: "dfl-sum-token" }, bdi(step.at(j, r))),
      ...[step.unary(j, r), step.edge(j, step.from(j), r), step.score(j, r)].map((value, i) =>
        h("td", { text: score(value, 2, i === 1) }),
      ),
    );
  const rows = [row("chosen", chosen)];
  if (others.length) {
    const gap = step.score(j, chosen) - step.score(j, others[0]);
    rows.push(
      row("next", others[0]),
      h("tr", {}, h("th", { scope: "row", colspan: 4, text: "difference" }), h("td", { text: score(gap, 2, true) })),
    );
  }
  const head = ["", "token", "unary", "+ edge", "= score"].map((text) =>
    text ? h("th", { scope: "col", text }) : h("td"),
  );
  box.replaceChildren(
    h("h3", { text: `Path at position ${j + 1}` }),
    h("table", { class: "dfl-sums" }, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows)),
    h(
      "p",
      { class: "dfl-dim" },
      step.edges ? "edge from " : "no edge scores recorded",
      step.edges ? bdi(step.before(j, step.from(j)), "dfl-mono") : "",
    ),
  );
}

function paintPins(view, box) {
  const items = [...view.pins].map(([key, { step, pos, rank }]) => {
    const remove = h("button", {
      type: "button",
      class: "dfl-button dfl-unpin",
      "aria-label": "Unpin",
      text: "×",
      onclick: () => unpin(view, key),
    });
    return h(
      "div",
      { class: "dfl-pin" },
      remove,
      h("div", { class: "dfl-dim", text: `step ${step.i + 1}` }),
      ...factSheet(step, pos, rank),
    );
  });
  box.replaceChildren(
    h("h3", { text: "Pinned" }),
    ...(items.length
      ? items
      : [h("p", { class: "dfl-dim", text: "Click a cell, or press Enter on it, to keep it here." })]),
  );
}

function unpin(view, key) {
  view.pins.delete(key);
  view.paintPins();
  view.grid.table.focus({ preventScroll: true });
}
