/* dflash-lab inspector: one trace, step by step. ES modules without dependencies; assets.module_text() joins them to
 * one, so no two of them define the same name at top level.
 *
 *   import { mount } from "./inspector.js";
 *   const dispose = mount(element, host);
 *
 * host
 *   summary     what Python's wire.trace_summary(trace) returned (JSON, once)
 *   getStep     i => Promise of what Python's wire.step_wire(trace, i) returned; called at most once per step in
 *               flight, prefetched around the current step, kept in a cache of 64
 *   onSelect    optional, ({step, pos, rank}) => void: after the user moved; 120 ms after the last move
 *   onPermalink optional, ({step, pos, rank}) => void: the user pressed y; without it the key is not offered
 *   initial     optional {step, pos}; both clamped. step from 0, pos from 1
 *   theme       optional "light" | "dark" | "auto" (default: follow the page's classes, then the system)
 *   compact     optional true: header, buttons, grid and detail only, for a page that has the rest
 *   testing     optional true: no animation, and window.__dflashIdle() resolves when nothing is pending
 *
 * dispose() removes everything from the element, with its listeners and observers. dispose.show({step, pos}) moves
 * the view from outside, without calling onSelect. dispose.update(summary) takes the longer summary of a run that goes
 * on (status "running"); the view goes along with its last step until the reader moves. dispose.savePicture("svg" | "png") saves the grid.
 *
 * The style sheet inspector.css is the host's to load. All class names start with "dfl". Token text reaches the page
 * through textContent and canvas only.
 */

import { clamp } from "./numbers.js";
import { firstTokens, stepStore, tokenOrigins } from "./trace.js";
import { followTheme, h, idle, listen, watchSize } from "./dom.js";
import { focusCell, go, paint, setFollowing } from "./moves.js";
import { readOptions } from "./options.js";
import { buildStrip } from "./strip.js";
import { buildBar, buildHeader, buildLegend } from "./bar.js";
import { buildGrid } from "./grid.js";
import { buildCard, buildDetail } from "./detail.js";
import { buildEdges } from "./edges.js";
import { buildText, readLayers } from "./text.js";
import { buildTour } from "./tour.js";
import { savePicture } from "./picture.js";
import { buildSheet, onKey } from "./keys.js";

let mounts = 0;

/** Shows a trace in `el`; see the top of this file. */
export function mount(el, host) {
  const { summary } = host;
  if (!summary || !summary.n) return mountEmpty(el, host);
  const view = {
    host,
    summary,
    uid: `dfl${++mounts}`,
    n: summary.n,
    step: clamp(Math.trunc(host.initial?.step ?? 0) || 0, 0, summary.n - 1),
    pos: -1,
    rank: 0,
    hover: null,
    wantedPos: host.initial?.pos ? Math.trunc(host.initial.pos) - 1 : null,
    ...readOptions(),
    layers: host.compact ? null : readLayers(summary),
    matches: null,
    following: summary.status === "running",
    playing: 0,
    current: null,
    loading: false,
    pins: new Map(),
    picked: null,
    origins: tokenOrigins(summary),
    firstTokens: firstTokens(summary),
    store: stepStore(host.getStep, () => view.n),
    undo: [],
    parts: [],
    timers: {},
    frame: new Map(),
  };
  view.drafted = summary.steps.k.some((k) => k > 0);
  const root = h("div", {
    class: view.drafted ? "dfl" : "dfl dfl-ar",
    tabindex: "-1",
    "data-lm-suppress-shortcuts": "true",
    role: "group",
    "aria-label": `Inspector of trace ${summary.name}`,
  });
  view.root = root;
  view.palette = null;
  view.note = h("div", { class: "dfl-strip-note" });
  const whole = host.compact ? [view.note] : [buildStrip(view)];
  root.append(buildHeader(view), ...whole, buildBar(view));
  if (!host.compact) root.append(buildLegend(view));
  root.append(buildMain(view));
  if (!host.compact) root.append(buildEdges(view), buildText(view));
  root.append(buildCard(view), buildSheet(view), buildTour(view));
  el.replaceChildren(root);
  if (host.testing) root.classList.add("dfl-still");
  followTheme(view);
  listen(view, root, "keydown", (event) => onKey(view, event));
  watchSize(view);
  if (host.testing) window.__dflashIdle = () => idle(view);
  go(view, view.step, { silent: true });
  const dispose = () => {
    clearInterval(view.playing);
    Object.values(view.timers).forEach(clearTimeout);
    view.store.stop();
    view.frame.clear();
    view.undo.forEach((undo) => undo());
    root.remove();
  };
  dispose.show = ({ step, pos }) => {
    // A move of the reader's that is yet to be told is overtaken.
    clearTimeout(view.timers.select);
    view.wantedPos = pos ? pos - 1 : null;
    if (step !== undefined && step !== view.step) go(view, step, { silent: true });
    else if (pos && view.current) focusCell(view, pos - 1, view.current.path[pos - 1] ?? 0, { silent: true });
  };
  dispose.update = (longer) => update(view, longer);
  dispose.savePicture = (kind) => savePicture(view, kind);
  return dispose;
}

/** The same run, further on. */
function update(view, summary) {
  Object.assign(view, {
    summary,
    n: summary.n,
    origins: tokenOrigins(summary),
    firstTokens: firstTokens(summary),
    layers: view.host.compact ? null : readLayers(summary),
  });
  view.parts.forEach((part) => part.grow?.());
  // Of the last blocks the text was not known to their ends.
  view.store.forget((step) => step.lengths.known < step.depth);
  view.parts.forEach((part) => part.repaint?.());
  if (view.following) setFollowing(view, true);
  else refresh(view);
}

/** Shows what has become known of the step that is shown. */
async function refresh(view) {
  setFollowing(view, false);
  const { step, pos, rank } = view;
  if (!view.current || view.store.peek(step)) return;
  const fresh = await view.store.get(step).catch(() => null);
  if (!fresh || step !== view.step) return;
  view.wantedPos = pos;
  paint(view, fresh);
  focusCell(view, pos, rank, { silent: true });
}

function mountEmpty(el, { summary, theme }) {
  const status = summary ? `This trace has no verification steps (status: ${summary.status}).` : "No trace loaded.";
  const root = h(
    "div",
    { class: "dfl dfl-empty", role: "group", "aria-label": "Inspector" },
    h("p", { class: "dfl-empty-head", text: status }),
    h("p", { text: "Open a file, drop one here, or use the example." }),
  );
  el.replaceChildren(root);
  const view = { root, host: { theme }, parts: [], undo: [] };
  followTheme(view);
  const dispose = () => {
    view.undo.forEach((undo) => undo());
    root.remove();
  };
  dispose.show = () => {};
  dispose.update = () => {};
  dispose.savePicture = () => {};
  return dispose;
}

function buildMain(view) {
  view.error = h("div", { class: "dfl-error", role: "alert" });
  view.error.hidden = true;
  return h(
    "div",
    { class: "dfl-main" },
    h("div", { class: "dfl-left" }, view.error, buildGrid(view)),
    buildDetail(view),
  );
}
