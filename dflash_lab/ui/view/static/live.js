/* A live server or a run on it: numbers, five charts, what is published beside.
 *
 *   import { mountLive } from "./live.js";
 *   const live = mountLive(element, host);
 *   live.show(view);                            again and again; `view` as Python's live_view makes it, with an `id`
 *   live.dispose();
 *
 * host
 *   plotly    () => Promise of Plotly
 *   onStop    optional, () => void: ends what is watched or measured
 *   theme     as the inspector's
 */

import { followTheme, h, later, setText, watchSize } from "./dom.js";
import { drawPlot } from "./plot.js";

const GOES_ON = ["waiting", "running"];
const SAID_EVERY_MS = 5000;

/** Charts of the first row, which are wider. */
const WIDE = ["throughput", "acceptance"];

/** Shows live views in `el`; see the top of this file. */
export function mountLive(el, host) {
  const root = h("div", { class: "dfl dfl-live", role: "group", "aria-label": "Live server" });
  const view = { root, host, parts: [], undo: [], timers: {}, frame: new Map(), shown: null, latest: null, paused: false };
  const [head, paintHead] = buildHead(view);
  const [tiles, paintTiles] = buildTiles(view);
  const [charts, paintCharts] = buildCharts(view);
  const [published, paintPublished] = buildPublished();
  root.append(head, tiles, charts, published);
  el.replaceChildren(root);
  const paint = () => {
    if (!view.shown) return;
    paintHead();
    paintTiles(view.shown);
    paintCharts(view.shown);
    paintPublished(view.shown);
  };
  view.parts.push({ repaint: paint });
  view.refresh = () => {
    if (!view.paused) view.shown = view.latest;
    paint();
  };
  followTheme(view);
  watchSize(view);
  return {
    show(latest) {
      if (latest.id !== view.latest?.id) view.paused = false;
      view.latest = latest;
      view.refresh();
    },
    dispose() {
      view.undo.forEach((undo) => undo());
      Object.values(view.timers).forEach(clearTimeout);
      charts.querySelectorAll(".js-plotly-plot").forEach((plot) => window.Plotly?.purge(plot));
      root.remove();
    },
  };
}

// ---- head: what is shown, how it goes, Pause and Stop

function buildHead(view) {
  const title = h("strong");
  const state = h("span", { class: "dfl-chip dfl-state" });
  const message = h("span", { class: "dfl-dim", role: "status" });
  const pause = h("button", {
    type: "button",
    class: "dfl-button",
    "aria-pressed": "false",
    title: "Freeze what is shown; what is measured goes on",
    onclick: () => {
      view.paused = !view.paused;
      view.refresh();
    },
  });
  const stop = h("button", { type: "button", class: "dfl-button", text: "Stop", onclick: () => view.host.onStop?.() });
  const facts = h("dl", { class: "dfl-live-facts" });
  const warnings = h("ul", { class: "dfl-live-warnings" });
  const node = h(
    "header",
    { class: "dfl-live-head" },
    h("div", { class: "dfl-live-line" }, h("div", { class: "dfl-title" }, title, state, message), h("div", { class: "dfl-nav" }, pause, stop)),
    facts,
    warnings,
  );
  const paint = () => {
    // How it goes is told although the charts stand still.
    const { latest, shown, paused } = view;
    setText(title, latest.title);
    setText(state, paused ? `${latest.state}, view paused` : latest.state);
    state.dataset.state = latest.state;
    setText(message, latest.message ?? "");
    setText(pause, paused ? "Resume" : "Pause");
    pause.setAttribute("aria-pressed", paused);
    const on = GOES_ON.includes(latest.state);
    pause.hidden = !on && !paused;
    stop.hidden = !on || !view.host.onStop || !latest.stoppable;
    replaceIfNew(facts, shown.facts, ([name, value]) => h("div", {}, h("dt", { text: name }), h("dd", {}, h("bdi", { text: value }))));
    replaceIfNew(warnings, shown.warnings, (text) => h("li", { text }));
  };
  return [node, paint];
}

// ---- numbers

function buildTiles(view) {
  const tiles = h("div", { class: "dfl-live-tiles" });
  const unknown = h("p", { class: "dfl-dim dfl-live-unknown" });
  const spoken = h("p", { class: "dfl-hidden", "aria-live": "polite" });
  const said = () => tellMost(view.shown.numbers);
  const paint = ({ numbers, speculation }) => {
    replaceIfNew(tiles, numbers.filter(({ value }) => value !== null), tile);
    const missing = numbers.filter(({ value }) => value === null).map(({ name, meaning }) => `${name} (${meaning})`);
    setText(unknown, [speculation, missing.length ? `not known: ${missing.join(", ")}` : ""].filter(Boolean).join("; "));
    if (!view.timers.said) later(view, "said", SAID_EVERY_MS, () => setText(spoken, said()));
  };
  return [h("section", { "aria-label": "Numbers" }, tiles, unknown, spoken), paint];
}

function tile({ name, value, unit, meaning, published }) {
  return h(
    "div",
    { class: "dfl-live-tile", title: meaning },
    h("b", {}, numberText(value), unit ? h("i", { text: ` ${unit}` }) : null),
    h("span", { text: name }),
    ...(published ?? []).map((text) => h("span", { class: "dfl-live-beside", text })),
  );
}

/** A number of a tile: counts whole, large ones without decimals, shares of one with three digits. */
export function numberText(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const digits = Math.abs(value) >= 1000 ? 0 : Math.abs(value) >= 100 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const tellMost = (numbers) =>
  numbers
    .filter(({ value }) => value !== null)
    .slice(0, 3)
    .map(({ name, value, unit }) => `${name} ${numberText(value)} ${unit}`)
    .join(", ");

// ---- charts

function buildCharts(view) {
  const cards = new Map();
  const rows = [h("div", { class: "dfl-live-row dfl-live-wide" }), h("div", { class: "dfl-live-row" })];
  const node = h("div", { class: "dfl-live-charts" }, ...rows);
  const paint = ({ id, figures }) => {
    for (const figure of figures) {
      if (!cards.has(figure.id)) {
        cards.set(figure.id, buildChart(figure.id));
        rows[WIDE.includes(figure.id) ? 0 : 1].append(cards.get(figure.id).node);
      }
      cards.get(figure.id).paint(view, figure, id);
    }
  };
  return [node, paint];
}

function buildChart(id) {
  const title = h("h3");
  const note = h("p", { class: "dfl-dim" });
  const plot = h("div", { class: "dfl-live-plot", role: "group" });
  const empty = h("p", { class: "dfl-live-empty" });
  const node = h("section", { class: `dfl-live-chart dfl-live-${id}` }, title, plot, empty, note);
  let busy = Promise.resolve();
  const paint = (view, figure, source) => {
    setText(title, figure.title);
    setText(note, figure.note);
    setText(empty, figure.empty ?? "");
    empty.hidden = !figure.empty;
    plot.hidden = Boolean(figure.empty);
    plot.setAttribute("aria-label", `${figure.title}: ${lastValues(figure.data)}`);
    // In a hidden tab a chart has no size; it is drawn once the tab is shown.
    if (figure.empty || !view.root.clientWidth) return;
    busy = busy.then(() => view.host.plotly()).then((Plotly) => draw(Plotly, plot, figure, view.root, source)).catch((error) => {
      empty.hidden = false;
      setText(empty, `The chart could not be drawn: ${error.message}`);
    });
  };
  return { node, paint };
}

function draw(Plotly, plot, { data, layout }, root, source) {
  const colours = getComputedStyle(root);
  const look = {
    font: { family: colours.fontFamily, size: 12, color: "--dfl-text" },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { bgcolor: "--dfl-raised", bordercolor: "--dfl-line", font: { color: "--dfl-text", size: 12 }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: "--dfl-muted", activecolor: "--dfl-text", remove: ["sendChartToCloud"] },
  };
  const painted = coloured({ data, layout: { ...layout, ...look } }, colours);
  return drawPlot(Plotly, plot, painted.data, painted.layout, source);
}

/** A figure with the colours of the theme in place of the names of their custom properties. */
function coloured(value, colours) {
  if (typeof value === "string") return value.startsWith("--dfl-") ? colours.getPropertyValue(value).trim() : value;
  if (Array.isArray(value)) return value.map((item) => coloured(item, colours));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, colours)]));
}

/** A chart in words: the last value of each curve, or all bars. */
export function lastValues(data) {
  return data
    .map(({ type, name, x, y }) => {
      if (type === "bar") return x.map((place, i) => `${place}: ${(100 * y[i]).toFixed(0)} %`).join(", ");
      const last = y.findLast((value) => value !== null);
      return `${name} ${last === undefined ? "none" : numberText(last)}`;
    })
    .join("; ");
}

// ---- published values in words

function buildPublished() {
  const node = h("section", { class: "dfl-live-published", "aria-label": "Published numbers" });
  const paint = ({ published, missing }) =>
    replaceIfNew(node, [...published, ...missing], (item) => (typeof item === "string" ? h("p", { class: "dfl-dim", text: `◇ ${item}` }) : entry(item)));
  return [node, paint];
}

function entry({ hardware, source, confidence, settings, differs, same_hardware: same }) {
  const verdict = !differs.length
    ? "Made alike: the values may be compared."
    : `${same ? "Same hardware, other settings" : "Other hardware"}: beside, not to be divided by (${differs.join("; ")}).`;
  return h(
    "p",
    {},
    h("b", { text: `◇ Published on ${hardware}` }),
    h("span", { text: `: ${settings}. Source: ${source} (${confidence}). ` }),
    h("span", { class: differs.length ? "dfl-live-unlike" : "dfl-live-alike", text: verdict }),
  );
}

/** Fills `node` with one child for each item, unless it shows these items already. */
function replaceIfNew(node, items, make) {
  const key = JSON.stringify(items);
  if (node.shownItems === key) return;
  node.shownItems = key;
  node.replaceChildren(...items.map(make));
  node.hidden = !items.length;
}
