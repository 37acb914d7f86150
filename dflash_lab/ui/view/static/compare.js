/* Two traces side by side: what differs, where their texts part, and both inspectors linked by output token.
 *
 *   import { mountCompare } from "./compare.js";
 *   const dispose = mountCompare(element, host);
 *
 * host
 *   comparison  what Python's comparison.comparison_wire(a, b) returned
 *   traces      [{summary, getStep}, {summary, getStep}]: of each what the inspector's host gives it
 *   onSelect    optional, ({step, pos, rank}) => void: where the first trace was moved to
 *   initial     optional {step, pos} of the first trace
 *   theme, testing  as the inspector's
 */

import { clamp, range } from "./numbers.js";
import { firstTokens, tokenOrigins } from "./trace.js";
import { followTheme, h, listen, nextFrame, pen, watchSize } from "./dom.js";
import { mount } from "./inspector.js";

const NAMES = ["A", "B"];
const LANE = 44;

/** Shows two traces in `el`; see the top of this file. */
export function mountCompare(el, host) {
  const root = h("div", { class: "dfl dfl-compare", role: "group", "aria-label": "Comparison of two traces" });
  const sides = host.traces.map(({ summary }) => ({
    summary,
    origins: tokenOrigins(summary),
    first: firstTokens(summary),
    place: { step: 0, pos: 1 },
  }));
  const view = { root, host, sides, token: 0, parts: [], undo: [], frame: new Map(), palette: null };
  view.length = Math.max(1, ...sides.map(({ summary }) => summary.output.length));
  const slots = NAMES.map(() => h("div", { class: "dfl-side" }));
  const strip = buildTokenStrip(view);
  root.append(buildVerdict(view), buildFindings(view), strip, ...NAMES.flatMap((name, i) => [heading(view, i), slots[i]]));
  el.replaceChildren(root);
  followTheme(view);
  watchSize(view);
  view.panes = host.traces.map(({ summary, getStep }, i) =>
    mount(slots[i], {
      summary,
      getStep,
      compact: true,
      theme: host.theme,
      testing: host.testing,
      initial: i === 0 ? host.initial : undefined,
      onSelect: (place) => moved(view, i, place),
    }),
  );
  const at = host.initial ?? {};
  follow(view, 0, tokenAt(sides[0], at.step ?? 0, at.pos ?? 1));
  return () => {
    view.panes.forEach((dispose) => dispose());
    view.undo.forEach((undo) => undo());
    root.remove();
  };
}

/** The output token that position `pos` (from 1) of `step` proposes. */
export const tokenAt = ({ first }, step, pos) => (first[step] ?? 0) + Math.max(1, pos) - 1;

/** Step and position (from 1) that committed output token `token`, the nearest where there is none. */
export function placeOf({ origins }, token) {
  const at = origins[clamp(token, 0, Math.max(0, origins.length - 1))] ?? { step: 0, at: 0 };
  return { step: Math.max(0, at.step), pos: at.at + 1 };
}

function moved(view, side, place) {
  if (side === 0) view.host.onSelect?.(place);
  follow(view, side, tokenAt(view.sides[side], place.step, place.pos));
}

/** Takes every side but `from` (-1: all) to `token`. */
function follow(view, from, token) {
  view.token = clamp(token, 0, view.length - 1);
  view.panes.forEach((pane, i) => i === from || pane.show(placeOf(view.sides[i], view.token)));
  view.parts.forEach((part) => part.repaint());
}

function heading({ sides }, i) {
  return h("h3", { class: "dfl-side-head" }, h("b", { class: "dfl-side-name", text: NAMES[i] }), sides[i].summary.name);
}

// ---- verdict and findings

function buildVerdict(view) {
  const { comparable, reasons, notes } = view.host.comparison;
  const head = comparable ? "Comparable: prompt, target and sampling are equal." : "Not comparable:";
  return h(
    "div",
    { class: comparable ? "dfl-banner" : "dfl-banner dfl-banner-warn", role: "note" },
    h("b", { text: head }),
    ...[...reasons, ...notes].map((text) => h("p", { text })),
  );
}

function buildFindings(view) {
  const { comparison, traces } = view.host;
  const names = traces.map((_, i) => NAMES[i]);
  return h(
    "div",
    { class: "dfl-findings" },
    card("First divergence", ...buildDivergence(view)),
    card(
      "Configuration",
      comparison.differences.length
        ? table(["", ...names], comparison.differences)
        : h("p", { class: "dfl-dim", text: "Nothing differs." }),
    ),
    card("Measured", table(["", ...names], comparison.metrics)),
    card("Published beside measured", ...buildPublished(comparison.published)),
  );
}

const card = (title, ...children) => h("section", { class: "dfl-finding" }, h("h3", { text: title }), ...children);

/** Rows of text cells, the first of each its header. */
function table(head, rows) {
  const cell = (text, i) => (i ? h("td", { text }) : h("th", { scope: "row", text }));
  return h(
    "div",
    { class: "dfl-tablebox", tabindex: "0", role: "group", "aria-label": "Table" },
    h(
      "table",
      { class: "dfl-plaintable" },
      h("thead", {}, h("tr", {}, ...head.map((text) => (text ? h("th", { scope: "col", text }) : h("td"))))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell)))),
    ),
  );
}

function buildDivergence(view) {
  const { divergence, verdict, verdictText, numCompared } = view.host.comparison;
  const words = h("p", { class: `dfl-verdict-${verdict}` }, h("b", { text: verdict }), `: ${verdictText}`);
  if (!divergence) return [words, h("p", { class: "dfl-dim", text: `${numCompared} tokens compared.` })];
  const row = (i, token, margin) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", text: NAMES[i] }),
      h("td", {}, h("bdi", { class: "dfl-mono", text: token })),
      h("td", { text: margin }),
    );
  const head = ["", "token", "top-2 margin"].map((text) => (text ? h("th", { scope: "col", text }) : h("td")));
  const rows = [row(0, divergence.a, divergence.marginA), row(1, divergence.b, divergence.marginB)];
  return [
    words,
    h("p", {}, `Output token ${divergence.index}, after `, h("bdi", { class: "dfl-mono", text: divergence.before })),
    h("table", { class: "dfl-plaintable" }, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows)),
    h("button", {
      type: "button",
      class: "dfl-button",
      text: "Go there",
      onclick: () => follow(view, -1, divergence.index),
    }),
  ];
}

/** Never a ratio: other hardware, other prompts. What fits stands open, what does not is there to unfold. */
function buildPublished({ measured, settings, targets, tables }) {
  const own = table(
    ["", "tokens / step", "settings"],
    NAMES.map((name, i) => [name, measured[i], settings[i]]),
  );
  const fitting = tables.filter(({ fits }) => fits);
  const others = tables.filter(({ fits }) => !fits);
  const none = h("p", { class: "dfl-dim", text: `None of the published tables that ship with this page is for the target ${targets.join(" or ")}.` });
  return [
    own,
    ...(fitting.length ? fitting.map(publishedTable) : [none]),
    h(
      "details",
      {},
      h("summary", { text: `${others.length} tables of other targets: for orientation, not comparable` }),
      ...others.map(publishedTable),
    ),
  ];
}

function publishedTable({ target, settings, source, confidence, definition, datasets, rows }) {
  return h(
    "div",
    { class: "dfl-published" },
    h("h4", { text: `◇ ${target}` }),
    rows.length ? table(["", ...datasets], rows) : h("p", { text: "The numbers of this table were not found." }),
    h("p", { class: "dfl-dim", text: `Published: ${settings}. Source: ${source}; ${confidence}. Acceptance length: ${definition}.` }),
  );
}

// ---- one strip for both, by output token

function buildTokenStrip(view) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const slider = h(
    "div",
    {
      class: "dfl-strip dfl-tokenstrip",
      role: "slider",
      tabindex: "0",
      "aria-label": "Output token",
      "aria-valuemin": 0,
      "aria-valuemax": view.length - 1,
      "data-lm-suppress-shortcuts": "true",
    },
    canvas,
  );
  const update = () => {
    slider.setAttribute("aria-valuenow", view.token);
    slider.setAttribute("aria-valuetext", `Output token ${view.token} of ${view.length}`);
    nextFrame(view, "strip", () => slider.clientWidth && drawTokenLanes(view, pen(canvas, slider.clientWidth, 2 * LANE + 8)));
  };
  view.parts.push({ repaint: update });
  const tokenUnder = (event) => {
    const box = slider.getBoundingClientRect();
    return Math.floor(((event.clientX - box.left) / box.width) * view.length);
  };
  slider.addEventListener("pointerdown", (event) => {
    slider.setPointerCapture(event.pointerId);
    follow(view, -1, tokenUnder(event));
  });
  slider.addEventListener("pointermove", (event) => {
    if (slider.hasPointerCapture(event.pointerId)) follow(view, -1, tokenUnder(event));
  });
  listen(view, slider, "keydown", (event) => onStripKey(view, event));
  return h(
    "section",
    { class: "dfl-overview", "aria-label": "Both traces by output token" },
    slider,
    h("p", { class: "dfl-dim", text: "A above, B below: one bar per step over the tokens it committed, height = accepted. Linked by output token; the dashed line is the first divergence. ← → token, n divergence." }),
  );
}

function onStripKey(view, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { divergence } = view.host.comparison;
  const to = {
    ArrowLeft: view.token - 1,
    ArrowRight: view.token + 1,
    PageUp: view.token - 10,
    PageDown: view.token + 10,
    Home: 0,
    End: view.length - 1,
    n: divergence?.index ?? view.token,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  follow(view, -1, to);
}

function drawTokenLanes(view, c) {
  const { palette, sides, length } = view;
  const width = c.canvas.clientWidth;
  const scale = width / length;
  sides.forEach((side, i) => {
    const base = i * (LANE + 8) + LANE;
    const { com, acc, k } = side.summary.steps;
    const most = Math.max(1, ...k);
    const now = placeOf(side, view.token).step;
    range(com.length).forEach((step) => {
      const x = side.first[step] * scale;
      const wide = Math.max(1, com[step] * scale - 1);
      const height = Math.max(2, (acc[step] / most) * (LANE - 6));
      c.fillStyle = step === now ? palette.accepted : palette.bar;
      c.fillRect(x, base - height, wide, height);
    });
    c.fillStyle = palette.line;
    c.fillRect(0, base, width, 1);
  });
  const { divergence } = view.host.comparison;
  if (divergence) {
    c.strokeStyle = palette.rejected;
    c.lineWidth = 2;
    c.setLineDash([4, 3]);
    c.strokeRect(divergence.index * scale, -2, 0, 2 * LANE + 12);
    c.setLineDash([]);
  }
  c.strokeStyle = palette.text;
  c.lineWidth = 1.5;
  c.strokeRect(view.token * scale, 0.75, Math.max(2, scale), 2 * LANE + 6.5);
}
