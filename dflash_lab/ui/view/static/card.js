/* A model card's tables: one's own runs with the published values beside, and the tables of other targets.
 *
 *   import { mountCard } from "./card.js";
 *   mountCard(element, { theme }).show(card);      `card` as Python's live_tables.card makes it
 */

import { followTheme, h } from "./dom.js";

/** Shows card tables in `el`; see the top of this file. */
export function mountCard(el, host = {}) {
  const root = h("div", { class: "dfl dfl-card-tables", role: "group", "aria-label": "Tables of the model card" });
  const view = { root, host, parts: [], undo: [], palette: null };
  el.replaceChildren(root);
  followTheme(view);
  return {
    show: (card) => root.replaceChildren(...build(card)),
    dispose: () => {
      view.undo.forEach((undo) => undo());
      root.remove();
    },
  };
}

function build(card) {
  const heads = card.published.filter(({ known }) => known);
  return [
    h("h2", { class: "dfl-card-title" }, "The card's tables", card.target ? h("bdi", { class: "dfl-dim", text: ` ${card.target}` }) : null),
    h(
      "p",
      { class: "dfl-card-key" },
      card.measured ? h("span", {}, h("b", { text: "● measured" }), ` on ${card.measured}`) : null,
      ...heads.map(({ hardware, source }) => h("span", {}, h("b", { text: "◇ published" }), ` on ${hardware}, ${source}`)),
    ),
    ...[...card.warnings, ...card.left_out].map((text) => h("p", { class: "dfl-card-note", text })),
    ...card.missing.map((text) => h("p", { class: "dfl-live-empty", text: `◇ ${text}` })),
    grid(card.tables),
    ...card.texts.map((text) => h("p", { class: "dfl-dim", text })),
    h(
      "details",
      { class: "dfl-card-others" },
      h("summary", { text: `Published tables of ${card.others.length} ${card.target ? "other targets" : "targets"}: for orientation` }),
      ...card.others.map(other),
    ),
  ];
}

function other({ target, drafter, hardware, runtime, settings, source, confidence, missing, tables }) {
  return h(
    "section",
    {},
    h("h3", { text: `◇ ${target}` }),
    h("p", { class: "dfl-dim", text: `with ${drafter ?? "no named drafter"}, ${hardware}, ${runtime}; ${settings}. Source: ${source} (${confidence}).` }),
    ...missing.map((text) => h("p", { class: "dfl-live-empty", text })),
    grid(tables),
  );
}

const grid = (tables) => h("div", { class: "dfl-card-grid" }, ...tables.map(table));

function table({ title, note, columns, rows }) {
  const head = h("tr", {}, h("td"), ...columns.map((text) => h("th", { scope: "col", text })));
  const body = rows.map(({ name, cells }) => h("tr", {}, h("th", { scope: "row", text: name }), ...cells.map(cell)));
  return h(
    "section",
    { class: "dfl-card-table" },
    h("h3", { text: title }),
    h("p", { class: "dfl-dim", text: note }),
    h(
      "div",
      { class: "dfl-tablebox", tabindex: "0", role: "group", "aria-label": title },
      h("table", {}, h("thead", {}, head), h("tbody", {}, ...body)),
    ),
  );
}

function cell(told) {
  if (!told) return h("td", { text: "–" });
  const { value, detail, published } = told;
  return h(
    "td",
    {},
    value ? h("b", { text: value }) : null,
    detail ? h("span", { text: detail }) : null,
    published ? h("i", { text: `◇ ${published}` }) : null,
  );
}
