/* The candidate grid. */

import { css, inkOn, ramp, range } from "./numbers.js";
import { cellLook, columnBounds, GLYPH, STATE_WORDS, visible } from "./step.js";
import { bdi, cellOf, h, nextFrame, reveal, setText, svg } from "./dom.js";
import { focusCell } from "./moves.js";
import { whatIf } from "./whatif.js";
import { drawOverlay, hatchPattern } from "./overlay.js";
import { closeCard, openCard, pin } from "./detail.js";

export function buildGrid(view) {
  const table = h("table", { class: "dfl-grid", role: "grid", tabindex: "0", "aria-label": "Candidates by position" });
  const overlay = svg("svg", { class: "dfl-overlay", "aria-hidden": "true" });
  const marks = svg("g");
  overlay.append(hatchPattern(view), marks);
  const wrap = h("div", { class: "dfl-gridwrap" }, table, overlay);
  const scroller = h("div", { class: "dfl-scroll" }, wrap);
  const grid = { view, table, overlay, marks, wrap, scroller, shape: "", heads: [], cells: [], orders: [], targets: [] };
  view.grid = grid;
  const repaint = () => view.current && paintGrid(grid);
  view.parts.push({ step: repaint, repaint, cell: () => markCell(grid) });
  table.addEventListener("click", (event) => {
    const at = cellAt(event);
    if (!at) return;
    focusCell(view, at.j, at.r);
    pin(view);
  });
  table.addEventListener("pointerover", (event) => {
    const at = cellAt(event);
    if (!at) return;
    view.hover = at;
    openCard(view, at.j, at.r);
    nextFrame(view, "overlay", () => drawOverlay(grid));
  });
  scroller.addEventListener("pointerleave", (event) => {
    view.hover = null;
    if (!view.card.contains(event.relatedTarget)) closeCard(view);
    nextFrame(view, "overlay", () => drawOverlay(grid));
  });
  return scroller;
}

function cellAt(event) {
  const cell = event.target.closest?.("td[data-at]");
  if (!cell) return null;
  const [j, r] = cell.dataset.at.split(",").map(Number);
  return { j, r };
}

function paintGrid(grid) {
  const { view } = grid;
  const step = view.current;
  const shape = `${step.depth}x${step.width}`;
  if (shape !== grid.shape) {
    shapeGrid(grid, step);
    grid.shape = shape;
  }
  paintToken(grid.anchor, step.token(step.anchor));
  grid.orders = range(step.depth).map((j) => rowOrder(view, step, j));
  setText(grid.rankHead, view.order === "score" && step.edges ? "score" : "rank");
  for (let j = 0; j < step.depth; j++) paintColumn(grid, step, j);
  paintTargets(grid, step);
  markCell(grid);
}

/** The candidates of a column from the top row down. */
function rowOrder(view, step, j) {
  const ranks = range(step.width);
  if (view.order !== "score" || !step.edges) return ranks;
  return ranks.sort((a, b) => step.score(j, b) - step.score(j, a) || a - b);
}

/** Makes the table for another number of positions or candidates; the focusable table itself stays. */
function shapeGrid(grid, step) {
  const { view } = grid;
  const cell = (attributes) =>
    h("td", attributes, h("div", { class: "dfl-c" }, h("bdi", { class: "dfl-t" }), h("span", { class: "dfl-n" })));
  grid.heads = range(step.depth).map(() => h("th", { scope: "col", role: "columnheader" }));
  grid.cells = range(step.depth).map((j) =>
    range(step.width).map((r) => cell({ role: "gridcell", id: `${view.uid}-${j}-${r}` })),
  );
  grid.targets = range(step.depth).map(() =>
    h("td", { role: "gridcell", class: "dfl-target" }, h("div", { class: "dfl-v" })),
  );
  grid.anchor = h(
    "td",
    { role: "gridcell", class: "dfl-anchor", rowspan: Math.max(1, step.width) },
    h("div", { class: "dfl-c" }, h("bdi", { class: "dfl-t" })),
  );
  const bonus = h("td", { role: "gridcell", class: "dfl-bonus-space", rowspan: Math.max(1, step.width) });
  grid.bonus = h("td", { role: "gridcell", class: "dfl-target dfl-bonus" }, h("div", { class: "dfl-v" }));
  const columns = h(
    "colgroup",
    {},
    h("col", { class: "dfl-col-rank" }),
    h("col", { class: "dfl-col-side" }),
    ...grid.heads.map(() => h("col")),
    h("col", { class: "dfl-col-side" }),
  );
  const head = (text, cls) => h("th", { scope: "col", role: "columnheader", class: cls, text });
  grid.rankHead = head("rank", "dfl-rank");
  const rows = range(Math.max(1, step.width)).map((r) => {
    const label = step.hasUnary ? r + 1 : step.depth ? "path" : "";
    const side = r === 0 ? [[grid.anchor], [bonus]] : [[], []];
    return h(
      "tr",
      { role: "row" },
      h("th", { scope: "row", role: "rowheader", class: "dfl-rank", text: label }),
      ...side[0],
      ...grid.cells.map((column) => column[r]),
      ...side[1],
    );
  });
  grid.table.replaceChildren(
    columns,
    h(
      "thead",
      {},
      h(
        "tr",
        { role: "row" },
        grid.rankHead,
        head("anchor"),
        ...grid.heads,
        head(step.depth ? "bonus" : "token"),
      ),
    ),
    h("tbody", {}, ...rows),
    h(
      "tfoot",
      {},
      h(
        "tr",
        { role: "row" },
        h("th", { scope: "row", role: "rowheader", class: "dfl-rank", text: "target" }),
        h("td", { role: "gridcell" }),
        ...grid.targets,
        grid.bonus,
      ),
    ),
  );
  grid.table.classList.toggle("dfl-tall", step.width <= 8);
  grid.scroller.style.setProperty("--dfl-columns", step.depth);
}

function paintToken(cell, token) {
  const text = cell.firstChild.firstChild;
  setText(text, visible(token));
  text.className = token.s ? "dfl-t dfl-special" : "dfl-t";
}

function paintColumn(grid, step, j) {
  const { view } = grid;
  const state = step.states[j];
  const head = grid.heads[j];
  head.textContent = `${j + 1} ${GLYPH[state]}`;
  head.className = `dfl-h-${state}`;
  head.title = `position ${j + 1}, sequence ${step.start + j + 1}: ${STATE_WORDS[state]}`;
  const bounds = view.fill === "p" ? null : columnBounds(step, view.fill, j);
  const other = view.picked && j >= view.picked.j ? whatIf(step, view.picked.j, view.picked.r).path[j] : -1;
  for (let row = 0; row < step.width; row++) {
    const r = grid.orders[j][row];
    const cell = grid.cells[j][row];
    // Only what changes is written: each write makes the browser look for rules anew.
    const at = `${j},${r}`;
    if (cell.dataset.at !== at) cell.dataset.at = at;
    const box = cell.firstChild;
    const look = cellLook(step, view.fill, j, r, bounds);
    const onPath = r === step.path[j];
    const ring = state === "mismatch" && r + 1 === step.wantedRank;
    paintToken(cell, step.at(j, r));
    setText(box.lastChild, look.text);
    const colour = look.level === null ? null : ramp(view.palette, look.level);
    box.style.backgroundColor = colour ? css(colour) : "";
    box.style.color = colour ? inkOn(colour) : "";
    box.className = `dfl-c${onPath ? ` dfl-p-${state}` : ""}${ring ? " dfl-ring" : ""}${r === other ? " dfl-w" : ""}${colour ? "" : " dfl-unset"}`;
    const words = `${onPath ? `, path, ${STATE_WORDS[state]}` : ""}${ring ? ", wanted by the target" : ""}${r === other ? ", what-if path" : ""}`;
    if (words) cell.setAttribute("aria-label", `${visible(step.at(j, r))} ${look.text}${words}`);
    else cell.removeAttribute("aria-label");
  }
}

function paintTargets(grid, step) {
  grid.targets.forEach((cell, j) => {
    const box = cell.firstChild;
    const state = step.states[j];
    box.className = `dfl-v dfl-v-${state}`;
    cell.className = `dfl-target${state === "unchecked" ? " dfl-hatch" : ""}`;
    if (state === "mismatch")
      verdict(
        box,
        "◆",
        step.token(step.bonus),
        step.hasUnary ? (step.bonusRank ? `rank ${step.bonusRank}` : "not in list") : "",
      );
    else
      box.replaceChildren(
        ...(state === "unchecked" ? [] : [h("span", {}, "=", h("span", { class: "dfl-word", text: " path" }))]),
      );
  });
  const alone = step.full || !step.depth;
  grid.bonus.firstChild.className = `dfl-v ${step.full ? "dfl-v-bonus" : alone ? "dfl-v-own" : "dfl-v-unchecked"}`;
  if (alone) verdict(grid.bonus.firstChild, step.depth ? "★" : "", step.token(step.bonus), "");
  else grid.bonus.firstChild.replaceChildren();
}

function verdict(box, glyph, token, note) {
  box.replaceChildren(
    h("span", { class: "dfl-verdict" }, glyph ? `${glyph}\u2009` : "", bdi(token, "dfl-t")),
    note ? h("small", { text: note }) : "",
  );
}

function markCell(grid) {
  const { view, table } = grid;
  table.querySelector(".dfl-focus")?.classList.remove("dfl-focus");
  const cell = cellOf(grid, view.pos, view.rank);
  if (cell) {
    cell.classList.add("dfl-focus");
    table.setAttribute("aria-activedescendant", cell.id);
    nextFrame(view, "reveal", () => reveal(grid.scroller, cell));
  } else table.removeAttribute("aria-activedescendant");
  nextFrame(view, "overlay", () => drawOverlay(grid));
}
