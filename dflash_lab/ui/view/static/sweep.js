/* A sweep's grid: block size by candidates in one of its metrics, and what is known of the cell one stands on.
 *
 *   import { mountSweep } from "./sweep.js";
 *   const sweep = mountSweep(element, host);
 *   sweep.show(view);        again and again; `view` as Python's sweep_wire makes it, with an `id`
 *   sweep.select({ block_size, num_candidates });       stand on another cell
 *   sweep.measure(metric);   show another number in the cells
 *   sweep.dispose();
 *
 * host
 *   getCell(key)             => Promise of what Python's cell_wire makes
 *   onSlice(index)           another slice is wished for
 *   onMetric(id), onSelect({block_size, num_candidates, key})       optional: where the reader moved
 *   metric                   optional: the number to begin with
 *   onOpen({key, prompt})    optional: the trace of a prompt of this cell is wished for
 *   theme                    as the inspector's
 */

import { followTheme, h, setText } from "./dom.js";
import { clamp } from "./numbers.js";

const WORDS = { missing: "not run", failed: "failed" };
const LEGEND = "★ ringed: the best. Hatched: not run, or failed. Below an acceptance length: 95 % over prompts.";
const KEYS = "Arrow keys move; Enter opens a trace.";

/** Shows a sweep in `el`; see the top of this file. */
export function mountSweep(el, host) {
  const root = h("div", { class: "dfl dfl-sweep", role: "group", "aria-label": "Sweep" });
  const view = { root, host, parts: [], undo: [], shown: null, metric: host.metric ?? null, at: [0, 0], turn: 0 };
  const [head, paintHead] = buildHead(view);
  const [heat, paintHeat] = buildHeat(view);
  const [panel, paintPanel] = buildPanel(view);
  root.append(head, h("div", { class: "dfl-sweep-main" }, heat, panel));
  el.replaceChildren(root);
  view.repaint = () => {
    paintHead();
    paintHeat();
  };
  view.paintPanel = paintPanel;
  followTheme(view);
  return {
    show: (shown) => show(view, shown),
    select: (cell) => {
      const at = placeOf(view, cell);
      if (at && String(at) !== String(view.at)) stand(view, at, { silent: true });
    },
    measure: (metric) => {
      if (metric === view.metric || !view.shown?.grid.metrics.some(({ id }) => id === metric)) return;
      view.metric = metric;
      view.repaint();
    },
    dispose() {
      view.undo.forEach((undo) => undo());
      root.remove();
    },
  };
}

function show(view, shown) {
  const before = view.shown && here(view);
  const other = view.shown?.id !== shown.id || view.shown?.slice !== shown.slice;
  view.shown = shown;
  const { metrics } = shown.grid;
  if (!metrics.some(({ id }) => id === view.metric)) view.metric = metrics[0]?.id ?? null;
  // The reader stays at a cell while rows come in; another grid is entered at its best one.
  view.at = (view.moved && before && placeOf(view, before)) || best(view) || [0, 0];
  view.repaint();
  if (other || before?.key !== here(view)?.key) loadPanel(view);
}

const where = (view) => {
  const { block_size, num_candidates, key } = here(view);
  return { block_size, num_candidates, key };
};
const here = ({ shown, at: [i, j] }) => shown?.grid.cells[i]?.[j];
const placeOf = (view, { block_size, num_candidates }) =>
  placeWhere(view, (cell) => cell.block_size === block_size && cell.num_candidates === num_candidates);
const best = (view) => placeWhere(view, ({ looks }) => looks[view.metric]?.best);

function placeWhere({ shown }, holds) {
  for (const [i, line] of (shown?.grid.cells ?? []).entries()) {
    const j = line.findIndex((cell, at) => holds(cell, i, at));
    if (j >= 0) return [i, j];
  }
  return null;
}

function stand(view, at, { silent = false, focus = false } = {}) {
  view.at = at;
  view.moved = true;
  view.repaint();
  if (focus) view.cells[at[0]][at[1]].focus();
  loadPanel(view);
  if (!silent) view.host.onSelect?.(where(view));
}

function loadPanel(view) {
  view.loading = askPanel(view);
}

/** Opens a trace of the cell one stands on, once it is known what there is to open. */
async function openTypical(view) {
  await view.loading;
  view.openTypical?.();
}

async function askPanel(view) {
  const cell = here(view);
  const mine = ++view.turn;
  view.openTypical = null;
  if (!cell?.key) return view.paintPanel(null);
  try {
    const known = await view.host.getCell(cell.key);
    if (mine === view.turn) view.paintPanel(known);
  } catch (error) {
    if (mine === view.turn) view.paintPanel(null, error.message);
  }
}

// ---- which slice, which metric

function buildHead(view) {
  const slices = h("select", { "aria-label": "Slice", onchange: () => view.host.onSlice?.(Number(slices.value)) });
  const metrics = h("div", { class: "dfl-choice", role: "group", "aria-label": "Number in the cells" });
  const about = h("p", { class: "dfl-dim" });
  const paint = () => {
    const { slices: names, slice, grid } = view.shown;
    if (slices.length !== names.length || [...slices.options].some(({ text }, i) => text !== names[i])) {
      slices.replaceChildren(...names.map((name, i) => new Option(name, i)));
    }
    slices.value = slice;
    metrics.replaceChildren(...grid.metrics.map((metric) => choice(view, metric)));
    setText(about, grid.about);
  };
  const line = h("div", { class: "dfl-sweep-line" }, slices, metrics);
  return [h("header", { class: "dfl-sweep-head" }, line, about), paint];
}

function choice(view, { id, name }) {
  const pick = () => {
    view.metric = id;
    view.host.onMetric?.(id);
    if (!view.moved) {
      view.at = best(view) ?? view.at;
      view.host.onSelect?.(where(view));
      loadPanel(view);
    }
    view.repaint();
    [...view.root.querySelectorAll(".dfl-choice button")].find(({ dataset }) => dataset.metric === id)?.focus();
  };
  return h("button", { type: "button", class: "dfl-button", "data-metric": id, "aria-pressed": String(id === view.metric), text: name, onclick: pick });
}

// ---- the grid

function buildHeat(view) {
  const head = h("thead");
  const body = h("tbody");
  const table = h("table", { class: "dfl-heat", role: "grid" }, head, body);
  const notes = h("p", { class: "dfl-dim" });
  let drawn = null;
  table.addEventListener("keydown", (event) => {
    const to = moved(view, event);
    if (to) stand(view, to, { focus: true });
    else if (event.key === "Enter" || event.key === " ") openTypical(view);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  table.addEventListener("focusin", ({ target }) => {
    const to = placeWhere(view, (_, i, j) => view.cells[i]?.[j] === target);
    if (to && String(to) !== String(view.at)) stand(view, to);
  });
  const paint = () => {
    const { grid } = view.shown;
    const axes = JSON.stringify([grid.block_sizes, grid.candidate_counts]);
    if (drawn !== axes) {
      drawn = axes;
      build(view, grid, head, body);
      // Beyond this the table scrolls in its box.
      table.style.minWidth = `${84 + 58 * grid.candidate_counts.length}px`;
    }
    const metric = grid.metrics.find(({ id }) => id === view.metric)?.name ?? "nothing measured";
    table.setAttribute("aria-label", `${metric} by block size and candidates`);
    view.cells.forEach((line, i) => line.forEach((td, j) => paintCell(view, td, i, j)));
    setText(notes, [LEGEND, ...grid.flags.map((flag) => `† ${flag}.`), view.host.onOpen ? KEYS : ""].filter(Boolean).join(" "));
  };
  return [h("div", { class: "dfl-sweep-heat" }, h("div", { class: "dfl-sweep-scroll" }, table), notes), paint];
}

function build(view, { block_sizes, candidate_counts, cells }, head, body) {
  head.replaceChildren(
    h("tr", {}, h("td", {}), h("th", { scope: "col", colspan: candidate_counts.length, class: "dfl-heat-axis", text: "candidates" })),
    h("tr", {}, h("th", { scope: "col", class: "dfl-heat-axis", text: "block size" }), ...candidate_counts.map((count) => h("th", { scope: "col", text: count }))),
  );
  view.cells = cells.map((line, i) =>
    line.map((_, j) => h("td", { role: "gridcell", onclick: () => stand(view, [i, j], { focus: true }), ondblclick: () => openTypical(view) })),
  );
  body.replaceChildren(...view.cells.map((line, i) => h("tr", {}, h("th", { scope: "row", text: block_sizes[i] }), ...line)));
}

function paintCell(view, td, i, j) {
  const cell = view.shown.grid.cells[i][j];
  const look = cell.looks[view.metric];
  const chosen = view.at[0] === i && view.at[1] === j;
  td.tabIndex = chosen ? 0 : -1;
  td.setAttribute("aria-selected", String(chosen));
  td.setAttribute("aria-label", look?.best ? `${cell.hover} · the best` : cell.hover);
  td.title = cell.hover;
  td.className = look ? (look.best ? "dfl-heat-best" : "") : "dfl-heat-none";
  td.style.background = look?.fill ?? "";
  td.style.color = look?.ink ?? "";
  const marks = `${look?.best ? "★ " : ""}${look?.text ?? WORDS[cell.status] ?? "–"}${cell.flagged ? "†" : ""}`;
  const below = view.metric === "mean_acceptance_length" && look ? cell.interval : "";
  if (td.shownText === `${marks}|${below}`) return;
  td.shownText = `${marks}|${below}`;
  td.replaceChildren(h("b", { text: marks }), ...(below ? [h("small", { text: below })] : []));
}

/** Where a key leads from the cell one stands on, or null. */
function moved({ at: [i, j], shown }, { key }) {
  const rows = shown.grid.cells.length;
  const columns = shown.grid.cells[0].length;
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -columns], End: [0, columns] };
  if (!(key in steps)) return null;
  const [di, dj] = steps[key];
  return [clamp(i + di, 0, rows - 1), clamp(j + dj, 0, columns - 1)];
}

// ---- the cell one stands on

function buildPanel(view) {
  const title = h("h3");
  const facts = h("dl", { class: "dfl-sweep-facts" });
  const flags = h("p", { class: "dfl-dim" });
  const problem = h("p", { class: "dfl-dim" });
  const open = h("button", { type: "button", class: "dfl-button", text: "Open in Inspect", onclick: () => view.openTypical() });
  const prompts = h("tbody");
  const heads = h("tr");
  const table = h("table", { class: "dfl-plaintable" }, h("thead", {}, heads), prompts);
  const box = h("div", { class: "dfl-tablebox", tabindex: "0", role: "region", "aria-label": "Prompts of the cell" }, table);
  const node = h("aside", { class: "dfl-sweep-cell", "aria-label": "Cell", "aria-live": "polite" }, title, facts, flags, problem, open, box);
  const paint = (known, error) => {
    const cell = here(view);
    setText(title, known?.title ?? (cell ? `block ${cell.block_size}, ${cell.num_candidates} candidates` : ""));
    setText(problem, error ?? (known || !cell ? "" : `This cell was ${cell.status === "failed" ? "tried and failed; why is in the table below" : "not run"}.`));
    setText(flags, known?.flags.join("; ") ?? "");
    facts.replaceChildren(
      ...(known?.facts ?? []).flatMap(([name, value, meaning]) => [h("dt", { text: name, title: meaning }), h("dd", { text: value, title: meaning })]),
    );
    const openable = Boolean(known?.typical && view.host.onOpen);
    view.openTypical = openable ? () => view.host.onOpen({ key: known.key, prompt: known.typical }) : null;
    open.hidden = !openable;
    open.title = openable ? `Decode prompt ${known.typical}, the nearest to the mean, and look at every step` : "";
    box.hidden = !known;
    const told = known?.prompts.some(({ category }) => category) ? ["prompt", "category", "length", "steps"] : ["prompt", "length", "steps"];
    heads.replaceChildren(...told.map((text) => h("th", { scope: "col", text })));
    prompts.replaceChildren(...(known?.prompts ?? []).map((prompt) => promptLine(view, known.key, prompt, told.length > 3)));
  };
  return [node, paint];
}

function promptLine(view, key, { id, category, length, steps }, categories) {
  const name = view.host.onOpen
    ? h("button", { type: "button", class: "dfl-link", text: id, title: "Open its trace in Inspect", onclick: () => view.host.onOpen({ key, prompt: id }) })
    : h("bdi", { text: id });
  const kind = categories ? h("td", {}, h("bdi", { text: category })) : null;
  return h("tr", {}, h("th", { scope: "row" }, name), kind, h("td", { text: length }), h("td", { text: steps }));
}
