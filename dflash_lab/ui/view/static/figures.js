/* Figures and tables of a report: each figure drawn by Plotly and readable as a table, zoom kept while numbers change.
 *
 *   import { mountFigures } from "./figures.js";
 *   const figures = mountFigures(element, host);
 *   figures.show({ id, figures, tables, commands });      as Python's sweep_wire makes them
 *   figures.dispose();
 *
 * host
 *   plotly      () => Promise of Plotly
 *   templates   { light, dark }: the look, as Python's plotly_template makes it
 *   theme       as the inspector's
 */

import { followTheme, h, setText, watchSize } from "./dom.js";
import { drawPlot } from "./plot.js";

const OPEN = ["recommended", "failed"];

/** Shows figures and tables in `el`; see the top of this file. */
export function mountFigures(el, host) {
  const root = h("div", { class: "dfl dfl-figures", role: "group", "aria-label": "Figures and tables" });
  const lead = h("section");
  const grid = h("div", { class: "dfl-figures-grid" });
  const rest = h("section");
  root.append(lead, grid, rest);
  el.replaceChildren(root);
  const view = { root, host, parts: [], undo: [], shown: null };
  const cards = [];
  const paint = () => {
    const { shown } = view;
    if (!shown) return;
    while (cards.length < shown.figures.length) {
      cards.push(buildFigure());
      grid.append(cards.at(-1).node);
    }
    cards.forEach((card, i) => card.paint(view, shown.figures[i]));
  };
  view.parts.push({ repaint: paint });
  followTheme(view);
  watchSize(view);
  return {
    show(shown) {
      view.shown = shown;
      const [first, others] = [true, false].map((open) => shown.tables.filter(({ kind }) => OPEN.includes(kind) === open));
      fill(lead, first.map(tableDetails));
      fill(rest, [...others.map(tableDetails), commands(shown.commands)]);
      paint();
    },
    dispose() {
      view.undo.forEach((undo) => undo());
      root.querySelectorAll(".js-plotly-plot").forEach((plot) => window.Plotly?.purge(plot));
      root.remove();
    },
  };
}

/** Replaces what stands in `node`, but what the reader has opened or closed stays so. */
function fill(node, details) {
  const before = new Map([...node.children].map((old) => [old.dataset.name, old.open]));
  for (const each of details) each.open = before.get(each.dataset.name) ?? each.open;
  node.replaceChildren(...details);
  node.hidden = !details.length;
}

function tableDetails({ kind, title, head, lines, note }) {
  const node = h("details", { "data-name": kind, open: OPEN.includes(kind) }, h("summary", { text: title }));
  node.append(tableBox(title, head, lines));
  if (note) node.append(h("p", { class: "dfl-dim", text: note }));
  return node;
}

function commands(lines) {
  const node = h("details", { "data-name": "commands", open: true }, h("summary", { text: "Same as this command" }));
  node.append(h("pre", { text: lines.join("\n") || "not recorded" }));
  return node;
}

function tableBox(title, head, lines) {
  const cells = (line) => line.map((text, i) => h(i ? "td" : "th", i ? { text } : { scope: "row", text }));
  return h(
    "div",
    { class: "dfl-tablebox", tabindex: "0", role: "region", "aria-label": title },
    h(
      "table",
      { class: "dfl-plaintable" },
      h("thead", {}, h("tr", {}, ...head.map((text) => h("th", { scope: "col", text })))),
      h("tbody", {}, ...lines.map((line) => h("tr", {}, ...cells(line)))),
    ),
  );
}

function buildFigure() {
  const title = h("h3");
  const plot = h("div", { class: "dfl-figure-plot", role: "figure" });
  const note = h("p", { class: "dfl-dim" });
  const numbers = h("details", {}, h("summary", { text: "Numbers" }), h("div"));
  const node = h("section", { class: "dfl-figure" }, title, plot, note, numbers);
  let current = null;
  let busy = Promise.resolve();
  const fillNumbers = () => {
    if (!numbers.open || !current) return;
    const { head, lines } = figureTable(current);
    numbers.lastChild.replaceChildren(tableBox(current.title, head, lines));
  };
  numbers.addEventListener("toggle", fillNumbers);
  const paint = (view, figure) => {
    node.hidden = !figure;
    if (!figure) return;
    current = figure;
    setText(title, figure.title);
    setText(note, figure.note);
    plot.setAttribute("aria-label", `${figure.title}. Its numbers are in the table below it.`);
    fillNumbers();
    // In a hidden tab a figure has no size; it is drawn once the tab is shown.
    if (!view.root.clientWidth) return;
    busy = busy.then(() => view.host.plotly()).then((Plotly) => draw(Plotly, plot, figure, view)).catch((error) => {
      setText(note, `The figure could not be drawn: ${error.message}`);
    });
  };
  return { node, paint };
}

function draw(Plotly, plot, { title, data, layout }, { root, host, shown }) {
  const dark = root.classList.contains("dfl-dark");
  const own = {
    height: plot.clientHeight,
    margin: { l: 46, r: 10, t: 8, b: 40 },
    font: { family: getComputedStyle(root).fontFamily, size: 11 },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", entrywidth: 0 },
    template: host.templates[dark ? "dark" : "light"],
  };
  const fresh = data.map((trace) => ({ ...trace })); // Plotly writes into what it is given
  return drawPlot(Plotly, plot, fresh, { ...structuredClone(layout), ...own }, `${shown.id} ${title}`);
}

/** A figure's numbers: a line for each x, a column for each trace. */
export function figureTable({ data, layout }) {
  const places = [...new Set(data.flatMap(({ x }) => x))];
  const value = ({ x, y }, place) => (x.includes(place) ? y[x.indexOf(place)] : null);
  const text = (number) => (number === null || number === undefined ? "–" : String(Number(number.toPrecision(4))));
  return {
    head: [layout.xaxis.title.text, ...data.map(({ name }) => name)],
    lines: places.map((place) => [String(place), ...data.map((trace) => text(value(trace, place)))]),
  };
}
