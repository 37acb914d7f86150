/* dflash-lab inspector: one trace, step by step. One ES module without dependencies.
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
 *   testing     optional true: no animation, and window.__dflashIdle() resolves when nothing is pending
 *
 * dispose() removes everything from the element, with its listeners and observers. dispose.show({step, pos}) moves
 * the view from outside, without calling onSelect.
 *
 * The style sheet inspector.css is the host's to load. All class names start with "dfl". Token text reaches the page
 * through textContent and canvas only.
 */

const CACHE = 64;
const AHEAD = 8;
const CHUNK = 500;
const PHASES = ["draft", "select", "verify", "commit"];
const MINUS = "\u2212";
const GLYPH = { accepted: "✓", mismatch: "✗", unchecked: "–", cut: "✂" };
const STATE_WORDS = {
  accepted: "accepted",
  mismatch: "first mismatch",
  unchecked: "not checked",
  cut: "accepted, cut off by stop or length",
};
const FILLS = [
  ["p", "p", "Fill and number: draft probability (of the full vocabulary)"],
  ["logit", "logit", "Fill and number: unary score, the drafter's logit"],
  ["score", "score", "Fill and number: unary + edge from the path's predecessor"],
];
const EDGES = [
  ["path", "path", "Lines: the path only"],
  ["focus", "focus", "Lines: the path, and the five strongest edges into the cell pointed at or moved to"],
  ["all", "all", "Lines: the strongest edge into every cell"],
];
const KEYS = [
  ["← →  or  , .", "previous, next step"],
  ["PgUp PgDn", "ten steps back, on"],
  ["Home End", "first, last step"],
  ["n  N", "next, previous rejection"],
  ["g", "go to step…"],
  ["/", "find token…"],
  ["Space", "play, pause"],
  ["Shift ← →", "position in the block"],
  ["↑ ↓", "candidate in the column"],
  ["Enter", "pin the cell"],
  ["p", "fill: probability, logit, score"],
  ["e", "edges: path, focus, all"],
  ["d", "dense grid"],
  ["l", "text: origin, plain"],
  ["f", "full screen"],
  ["y", "copy permalink"],
  ["?", "this sheet"],
  ["Esc", "close, unpin, then leave"],
];

// ---- numbers and buffers -------------------------------------------------------------------------------------------

/** The value of an IEEE 754 half. */
export function halfToFloat(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

/** A wire buffer as Float32Array, or null. */
export function decodeBuffer(buffer) {
  if (!buffer) return null;
  const bytes = Uint8Array.from(atob(buffer.d), (char) => char.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const half = buffer.q === "f16";
  const values = new Float32Array(bytes.length / (half ? 2 : 4));
  for (let i = 0; i < values.length; i++) {
    values[i] = half ? halfToFloat(view.getUint16(2 * i, true)) : view.getFloat32(4 * i, true);
  }
  return values;
}

/** A probability in per cent, at most three characters. */
export function percent(p) {
  if (!Number.isFinite(p)) return "·";
  const value = 100 * p;
  if (value < 0.1) return "<.1";
  return value < 9.95 ? value.toFixed(1).replace(/^0/, "") : value.toFixed(0);
}

/** A score with a real minus sign; "·" where it was not recorded, "−∞" where it is masked. */
export function score(value, digits = 2, signed = false) {
  if (value === null || value === undefined || Number.isNaN(value)) return "·";
  if (!Number.isFinite(value)) return value < 0 ? `${MINUS}∞` : "∞";
  const text = Math.abs(value).toFixed(digits);
  return (value < 0 && Number(text) !== 0 ? MINUS : signed ? "+" : "") + text;
}

const milliseconds = (value) => (value === null ? "·" : value < 9.95 ? value.toFixed(1) : value.toFixed(0));
const probability = (p) => (p < 0.001 ? p.toExponential(1).replace("-", MINUS) : p.toPrecision(2));
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const total = (times) => times.reduce((sum, value) => sum + (value ?? 0), 0);
const range = (n) => Array.from({ length: n }, (_, i) => i);

// ---- colours -------------------------------------------------------------------------------------------------------

const parseColour = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const mix = (a, b, t) => a.map((value, i) => Math.round(value + (b[i] - value) * t));
const css = (rgb) => `rgb(${rgb.join(",")})`;

function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const c = value / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white, whichever reads better on `rgb`: never under 4.5 to 1. */
export const inkOn = (rgb) => (luminance(rgb) > 0.179 ? "#000" : "#fff");

/** Colour of a score in 0..1 on the single-hue ramp. */
export const ramp = (palette, t) => mix(palette.ramp0, palette.ramp1, clamp(t, 0, 1));

/** Colour of a signed share in -1..1 on the diverging scale. */
export function diverging(palette, t) {
  const [middle, end] = t < 0 ? palette.negative : palette.positive;
  const size = clamp(Math.abs(t), 0, 1);
  return size < 0.5 ? mix(palette.neutral, middle, 2 * size) : mix(middle, end, 2 * size - 1);
}

function readPalette(root) {
  const style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue(`--dfl-${name}`).trim() || "#888888";
  const rgb = (name) => parseColour(colour(name));
  const names = ["surface", "text", "muted", "line", "accepted", "rejected", "correction", "bonus", "bar", "ring"];
  return {
    ...Object.fromEntries(names.map((name) => [name, colour(name)])),
    phases: PHASES.map((name) => colour(`phase-${name}`)),
    ramp0: rgb("ramp0"),
    ramp1: rgb("ramp1"),
    neutral: rgb("neutral"),
    negative: [rgb("negative1"), rgb("negative2")],
    positive: [rgb("positive1"), rgb("positive2")],
  };
}

// ---- one step as the page needs it ---------------------------------------------------------------------------------

const NO_TOKEN = { t: "?" };
/** How a token is shown. */
export const visible = (token) => token.v ?? token.t;

/** A wire step with its buffers decoded and the questions the views ask of it. Positions count from 0 here. */
export function readStep(wire) {
  const depth = wire.draft.length;
  const ids = wire.ids ?? wire.draft.map((id) => [id]);
  const width = depth ? ids[0].length : 0;
  const path = wire.ids ? (wire.path ?? ids.map((column, j) => column.indexOf(wire.draft[j]))) : ids.map(() => 0);
  const unary = decodeBuffer(wire.unary);
  const edges = decodeBuffer(wire.edges);
  const q = decodeBuffer(wire.q);
  const targetLogit = decodeBuffer(wire.targetLogit);
  const from = (j) => (j ? path[j - 1] : 0);
  const step = {
    ...wire,
    ids,
    depth,
    width,
    path,
    edges,
    hasUnary: unary !== null,
    token: (id) => wire.tokens[id] ?? NO_TOKEN,
    at: (j, r) => wire.tokens[ids[j]?.[r]] ?? NO_TOKEN,
    before: (j, e) => (j ? step.at(j - 1, e) : step.token(wire.anchor)),
    numBefore: (j) => (j ? width : 1),
    unary: (j, r) => (unary ? unary[j * width + r] : null),
    p: (j, r) => (unary && wire.logNorm ? Math.exp(unary[j * width + r] - wire.logNorm[j]) : null),
    q: (j, r) => (q ? q[j * width + r] : null),
    edge: (j, e, r) => (edges && e >= 0 && e < width ? edges[(j * width + e) * width + r] : null),
    score: (j, r, e = from(j)) => (edges && unary ? step.unary(j, r) + step.edge(j, e, r) : step.unary(j, r)),
    targetP: (j, r) =>
      targetLogit && wire.targetNorm ? Math.exp(targetLogit[j * width + r] - wire.targetNorm[j]) : null,
    margin: (j) => (wire.targetTop2 ? wire.targetTop2[j][0] - wire.targetTop2[j][1] : null),
    from,
  };
  step.full = depth > 0 && wire.acc === depth;
  step.bonusRank = wire.acc < depth ? ids[wire.acc].indexOf(wire.bonus) + 1 : 0;
  step.states = range(depth).map((j) => stateOf(wire, j));
  step.focus = depth ? Math.min(wire.acc, depth - 1) : -1;
  return step;
}

function stateOf(wire, j) {
  if (j < wire.acc) return j < wire.committed.length ? "accepted" : "cut";
  return j === wire.acc ? "mismatch" : "unchecked";
}

/** The `count` strongest edges into candidate `r` of column `j`, strongest first: [{e, edge, score}]. */
export function strongest(step, j, r, count = 5) {
  if (!step.edges || j < 0) return [];
  const into = range(step.numBefore(j)).map((e) => ({ e, edge: step.edge(j, e, r), score: step.score(j, r, e) }));
  return into.sort((a, b) => b.edge - a.edge || a.e - b.e).slice(0, count);
}

/** Fill level 0..1 (null: nothing recorded) and text of a cell in a fill mode. */
export function cellLook(step, mode, j, r, bounds) {
  const value = mode === "p" ? step.p(j, r) : mode === "logit" ? step.unary(j, r) : step.score(j, r);
  if (value === null || Number.isNaN(value)) return { level: null, text: "·" };
  if (mode === "p") return { level: Math.sqrt(value), text: percent(value) };
  if (!Number.isFinite(value)) return { level: value < 0 ? 0 : 1, text: score(value) };
  const [low, high] = bounds;
  return { level: high > low ? (value - low) / (high - low) : 1, text: score(value, 1) };
}

function columnBounds(step, mode, j) {
  const values = range(step.width).map((r) => (mode === "logit" ? step.unary(j, r) : step.score(j, r)));
  const finite = values.filter((value) => Number.isFinite(value) && value !== null);
  return [Math.min(...finite), Math.max(...finite)];
}

const quoted = (token) => `“${visible(token)}”`;

function tokenBytes(token) {
  const hex = token.b ?? Array.from(new TextEncoder().encode(token.t), (b) => b.toString(16).padStart(2, "0")).join("");
  const pairs = hex.match(/../g) ?? [];
  return pairs.slice(0, 12).join(" ") + (pairs.length > 12 ? " …" : "") || "none";
}

/** What is known of one candidate, as [label, text] rows: the card and the pins show it. */
export function cellFacts(step, j, r) {
  const token = step.at(j, r);
  const facts = [["token", `id ${step.ids[j][r]} · bytes ${tokenBytes(token)}${token.s ? " · special" : ""}`]];
  if (step.hasUnary) facts.push(["draft", draftFact(step, j, r)]);
  if (step.edges) facts.push(["edge", edgeFact(step, j, r)]);
  if (step.edges && step.path[j] < step.width) facts.push(["score", scoreFact(step, j, r)]);
  if (step.q(j, r) !== null) facts.push(["drawn", `q ${step.q(j, r).toFixed(3)}`]);
  const target = targetFact(step, j, r);
  if (target) facts.push(["target", target]);
  return facts;
}

function draftFact(step, j, r) {
  const p = step.p(j, r);
  if (p === null) return `logit ${score(step.unary(j, r))}`;
  const sum = range(r + 1).reduce((total, i) => total + step.p(j, i), 0);
  return `logit ${score(step.unary(j, r))} · p ${probability(p)} · cumulative ${sum.toFixed(2)}`;
}

function edgeFact(step, j, r) {
  const e = step.from(j);
  const own = `from ${quoted(step.before(j, e))} ${score(step.edge(j, e, r), 2, true)}`;
  const [best] = strongest(step, j, r, 1);
  return best.e === e
    ? `${own}, the best into it`
    : `${own}; best from ${quoted(step.before(j, best.e))} ${score(best.edge, 2, true)}`;
}

function scoreFact(step, j, r) {
  const own = step.score(j, r);
  if (r === step.path[j]) return `${score(own)} · chosen`;
  const chosen = step.score(j, step.path[j]);
  return `${score(own)} · chosen: ${score(chosen)} (${score(own - chosen, 2, true)})`;
}

function targetFact(step, j, r) {
  const parts = [];
  const p = step.targetP(j, r);
  if (p !== null) parts.push(`p ${probability(p)}`);
  if (step.target)
    parts.push(step.target[j] === step.ids[j][r] ? "arg-max here" : `arg-max ${quoted(step.token(step.target[j]))}`);
  const margin = step.margin(j);
  if (margin !== null) parts.push(`top-2 margin ${score(margin)}`);
  if (parts.length && step.states[j] === "unchecked") parts.push("given the rejected path");
  return parts.join(" · ");
}

/** One sentence on why the step ended where it did. */
export function causeSentence(step) {
  if (!step.depth) return "No drafter: the token is the target's own.";
  const bonus = quoted(step.token(step.bonus));
  const wanted = quoted(step.token(step.wanted));
  const chosen = quoted(step.token(step.draft[step.acc]));
  switch (step.cause) {
    case "full":
      return `All ${step.depth} proposals were kept; ${bonus} follows as bonus.`;
    case "selector":
      return `The target wanted ${wanted}, rank ${step.wantedRank} in the column; the path took ${chosen}.`;
    case "drafter":
      return step.wantedRank
        ? `The target wanted ${wanted}, rank ${step.wantedRank}; without a selector rank 1 is taken, ${chosen}.`
        : `The target wanted ${wanted}, which is not among the ${step.rows} candidates; the path took ${chosen}.`;
    case "stop":
      return `The text ended inside this block: ${step.acc + 1 - step.committed.length} tokens were cut off.`;
    case "sampled":
      return `${chosen} is the target's arg-max, but the draw rejected it; ${bonus} was drawn instead.`;
    default:
      return `${chosen} was rejected for ${bonus}; the candidates or the target's scores were not recorded.`;
  }
}

const CAUSE_WORDS = {
  selector: "selector miss",
  drafter: "drafter miss",
  full: "all accepted",
  stop: "cut by stop or length",
  sampled: "rejected by sampling",
  unknown: "cause not recorded",
};

// ---- the whole trace -----------------------------------------------------------------------------------------------

/** Groups `n` steps into bars at least 4 px wide: {size, count, width}. */
export function makeBins(n, pixels) {
  const size = Math.max(1, Math.ceil(n / Math.max(1, Math.floor(pixels / 4))));
  const count = Math.ceil(n / size);
  return { size, count, width: clamp(pixels / Math.max(1, count), 4, 16) };
}

/** For each step the index in the output of the first token it committed; token 0 came from prefill. */
export const firstTokens = (summary) => summary.steps.start.map((start) => start - summary.promptTokens + 1);

/** For each output token its step (-1: none, as from prefill), place in the step's commit, and origin. */
export function tokenOrigins(summary) {
  const { com, acc, k } = summary.steps;
  const origins = summary.output.map(() => ({ step: -1, at: 0, origin: "prefill" }));
  firstTokens(summary).forEach((first, step) => {
    const own = k[step] === 0 ? "target" : acc[step] === k[step] ? "bonus" : "correction";
    for (let at = 0; at < com[step]; at++) {
      if (first + at in origins) origins[first + at] = { step, at, origin: at < acc[step] ? "accepted" : own };
    }
  });
  return origins;
}

/** Splits the output into runs of about `size` tokens, after a line break where one is near: [[from, to]]. */
export function makeChunks(summary, size = CHUNK) {
  const chunks = [];
  let from = 0;
  summary.output.forEach((id, k) => {
    const length = k + 1 - from;
    const breaks = summary.tokens[id]?.t.includes("\n");
    if ((length >= 0.8 * size && breaks) || length >= size) {
      chunks.push([from, k + 1]);
      from = k + 1;
    }
  });
  if (from < summary.output.length) chunks.push([from, summary.output.length]);
  return chunks;
}

/** Byte pieces that follow each other read as one: "⟨E2 80 99⟩ → ’". */
export function byteRun(hex) {
  const bytes = Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
  const spelled = `⟨${Array.from(bytes, (b) => b.toString(16).toUpperCase().padStart(2, "0")).join(" ")}⟩`;
  try {
    return `${spelled} → ${new TextDecoder("utf-8", { fatal: true }).decode(bytes)}`;
  } catch {
    return spelled;
  }
}

/** The step of the next output token at which `needle` begins, after step `after`, wrapping round; -1 if nowhere. */
export function findStep(summary, origins, needle, after) {
  const starts = [];
  let text = "";
  for (const id of summary.output) {
    starts.push(text.length);
    text += (summary.tokens[id] ?? NO_TOKEN).t;
  }
  const lower = text.toLowerCase();
  const wanted = needle.toLowerCase();
  let first = -1;
  for (let at = lower.indexOf(wanted); wanted && at >= 0; at = lower.indexOf(wanted, at + 1)) {
    const step = Math.max(0, origins[starts.findLastIndex((start) => start <= at)].step);
    if (step > after) return step;
    if (first < 0) first = step;
  }
  return first;
}

/** Steps fetched on demand: one promise per step, a cache of 64, neighbours ahead of time. */
function stepStore(getStep, n) {
  const ready = new Map();
  const pending = new Map();
  let wave = 0;
  const store = {
    peek: (i) => ready.get(i),
    get(i) {
      if (ready.has(i)) {
        const step = ready.get(i);
        ready.delete(i);
        ready.set(i, step);
        return Promise.resolve(step);
      }
      if (!pending.has(i)) pending.set(i, fetchStep(i));
      return pending.get(i);
    },
    async prefetch(centre) {
      const own = ++wave;
      for (let d = 1; d <= AHEAD; d++) {
        for (const i of [centre + d, centre - d]) {
          if (own !== wave) return;
          if (i >= 0 && i < n && !ready.has(i)) await store.get(i).catch(() => {});
        }
      }
    },
    stop: () => wave++,
  };
  async function fetchStep(i) {
    try {
      const step = readStep(await getStep(i));
      ready.set(i, step);
      if (ready.size > CACHE) ready.delete(ready.keys().next().value);
      return step;
    } finally {
      pending.delete(i);
    }
  }
  return store;
}

// ---- building the page ---------------------------------------------------------------------------------------------

/** An element with attributes ("class", "text", on… handlers) and children; text only ever as text. */
function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes = {}) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** A canvas context of `width` x `height` CSS pixels, cleared. */
function pen(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

const bdi = (token, cls) => h("bdi", { class: cls, text: visible(token) });
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
    fill: "p",
    lines: "focus",
    dense: false,
    plain: false,
    playing: 0,
    current: null,
    loading: false,
    pins: new Map(),
    origins: tokenOrigins(summary),
    firstTokens: firstTokens(summary),
    store: stepStore(host.getStep, summary.n),
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
  root.append(
    buildHeader(view),
    buildStrip(view),
    buildBar(view),
    buildLegend(view),
    buildMain(view),
    buildEdges(view),
    buildText(view),
    buildCard(view),
    buildSheet(view),
  );
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
    view.wantedPos = pos ? pos - 1 : null;
    if (step !== undefined && step !== view.step) go(view, step, { silent: true });
    else if (pos && view.current) focusCell(view, pos - 1, view.current.path[pos - 1] ?? 0, { silent: true });
  };
  return dispose;
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
  return dispose;
}

function listen(view, target, type, handler) {
  target.addEventListener(type, handler);
  view.undo.push(() => target.removeEventListener(type, handler));
}

function later(view, name, delay, action) {
  clearTimeout(view.timers[name]);
  view.timers[name] = setTimeout(() => {
    view.timers[name] = 0;
    action();
  }, delay);
}

/** Runs `action` once in the next frame, with all others that read sizes: one layout per step instead of five. */
function nextFrame(view, name, action) {
  if (!view.frame.size) {
    requestAnimationFrame(() => {
      const actions = [...view.frame.values()];
      view.frame.clear();
      actions.forEach((run) => run());
    });
  }
  view.frame.set(name, action);
}

async function idle(view) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 10));
    await view.ahead;
    if (!view.loading && !view.timers.select) break;
  }
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
}

// ---- theme and size ------------------------------------------------------------------------------------------------

function pageIsDark() {
  const { body } = document;
  const names = body.classList;
  if (names.contains("dark") || names.contains("vscode-dark") || names.contains("vscode-high-contrast")) return true;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (names.contains("light") || names.contains("vscode-light")) return false;
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function followTheme(view) {
  const { theme = "auto" } = view.host;
  const apply = () => {
    const dark = theme === "auto" ? pageIsDark() : theme === "dark";
    view.root.classList.toggle("dfl-dark", dark);
    view.palette = readPalette(view.root);
    view.parts.forEach((part) => part.repaint?.());
  };
  apply();
  if (theme !== "auto") return;
  const observer = new MutationObserver(apply);
  observer.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-light"] });
  view.undo.push(() => observer.disconnect());
  listen(view, matchMedia("(prefers-color-scheme: dark)"), "change", apply);
}

/** Canvases and the overlay depend on sizes; in a hidden tab they are 0 and drawn once shown. */
function watchSize(view) {
  const observer = new ResizeObserver(() => {
    if (!view.root.clientWidth) return;
    view.palette = readPalette(view.root);
    view.parts.forEach((part) => part.repaint?.());
  });
  observer.observe(view.root);
  view.undo.push(() => observer.disconnect());
}

// ---- moving --------------------------------------------------------------------------------------------------------

function go(view, step, { silent = false } = {}) {
  view.step = clamp(Math.trunc(step) || 0, 0, view.n - 1);
  closeCard(view);
  view.parts.forEach((part) => part.move?.());
  if (!silent) announce(view);
  load(view);
}

/** Paints the step asked for last; steps passed over while one was on its way are never fetched. */
async function load(view) {
  if (view.loading) return;
  view.loading = true;
  while (view.current?.i !== view.step || view.failed) {
    const wanted = view.step;
    view.failed = false;
    try {
      const step = view.store.peek(wanted) ?? (await view.store.get(wanted));
      if (wanted === view.step) paint(view, step);
    } catch (error) {
      if (wanted !== view.step) continue;
      view.failed = true;
      showError(view, wanted, error);
      break;
    }
  }
  view.loading = false;
  view.ahead = view.failed ? null : view.store.prefetch(view.step);
}

function paint(view, step) {
  view.current = step;
  const wanted = view.wantedPos;
  view.wantedPos = null;
  view.pos = wanted !== null && step.depth ? clamp(wanted, 0, step.depth - 1) : step.focus;
  view.rank = view.pos < 0 ? 0 : clamp(step.path[view.pos], 0, step.width - 1);
  view.hover = null;
  view.explored = wanted !== null;
  view.error.hidden = true;
  view.parts.forEach((part) => part.step?.());
}

function focusCell(view, pos, rank, { silent = false, card = false } = {}) {
  const step = view.current;
  if (!step?.depth) return;
  const moved = pos !== view.pos;
  view.explored = true;
  view.pos = clamp(pos, 0, step.depth - 1);
  view.rank = clamp(rank, 0, step.width - 1);
  view.parts.forEach((part) => part.cell?.(moved));
  if (card) openCard(view, view.pos, view.rank);
  if (!silent) announce(view);
}

const place = (view) => ({ step: view.step, pos: view.pos + 1, rank: view.rank + 1 });

function announce(view) {
  later(view, "select", 120, () => view.host.onSelect?.(place(view)));
}

/** To the next step, or the previous one, at which a proposal was rejected. */
function jump(view, direction) {
  const { acc, k } = view.summary.steps;
  for (let i = view.step + direction; i >= 0 && i < view.n; i += direction) if (acc[i] < k[i]) return go(view, i);
  tell(view, direction > 0 ? "No rejection after this step." : "No rejection before this step.");
}

function togglePlay(view) {
  if (view.playing) {
    clearInterval(view.playing);
    view.playing = 0;
  } else {
    const slow = matchMedia("(prefers-reduced-motion: reduce)").matches;
    view.playing = setInterval(
      () => (view.step < view.n - 1 ? go(view, view.step + 1) : togglePlay(view)),
      slow ? 1500 : 450,
    );
  }
  view.playButton.textContent = view.playing ? "❚❚" : "▶";
  view.playButton.setAttribute("aria-pressed", String(Boolean(view.playing)));
}

// ---- header --------------------------------------------------------------------------------------------------------

function buildHeader(view) {
  const { summary } = view;
  const chips = summary.chips.map(([label, value]) =>
    h("span", { class: "dfl-chip" }, h("span", { class: "dfl-dim", text: `${label} ` }), value),
  );
  if (summary.status !== "complete") chips.unshift(h("span", { class: "dfl-chip dfl-warn", text: summary.status }));
  return h(
    "header",
    { class: "dfl-header" },
    h("div", { class: "dfl-title" }, h("strong", { text: summary.name }), ...chips),
    buildTotals(view),
    summary.warnings.length ? buildWarnings(summary.warnings) : null,
  );
}

function buildWarnings(warnings) {
  const noun = warnings.length === 1 ? "warning" : "warnings";
  return h(
    "details",
    { class: "dfl-warnings" },
    h("summary", { text: `${warnings.length} ${noun} while it ran` }),
    ...warnings.map((text) => h("p", { text })),
  );
}

function buildTotals({ summary, drafted }) {
  const { totals } = summary;
  const fact = (value, label, title) =>
    value === null || value === undefined
      ? null
      : h("span", { class: "dfl-fact", title }, h("b", { text: value }), ` ${label}`);
  return h(
    "div",
    { class: "dfl-totals" },
    drafted
      ? fact(
          totals.acceptanceLength?.toFixed(2),
          "acceptance length",
          "1 + accepted proposals per step, mean over steps (vLLM's definition)",
        )
      : null,
    drafted
      ? fact(
          totals.acceptanceRate === null ? null : `${(100 * totals.acceptanceRate).toFixed(0)} %`,
          "of proposals accepted",
          "accepted / proposed, without bonus tokens",
        )
      : null,
    fact(summary.n, summary.n === 1 ? "step" : "steps", "Verification steps"),
    fact(totals.tokens, "tokens", "Output tokens, the one from prefill included"),
    fact(totals.tokS?.toFixed(1), "tok/s", "Tokens after the first per second of decoding"),
    drafted ? buildCauseBar(totals.causes) : null,
  );
}

function buildCauseBar(causes) {
  const entries = Object.entries(causes ?? {}).filter(([, count]) => count);
  const words = entries.map(([cause, count]) => `${CAUSE_WORDS[cause]} ${count}`).join(", ");
  const parts = entries.map(([cause, count]) =>
    h("span", { class: `dfl-cause dfl-cause-${cause}` }, `${CAUSE_WORDS[cause]} `, h("b", { text: count })),
  );
  return h("span", { class: "dfl-causes", role: "group", "aria-label": `How the steps ended: ${words}` }, ...parts);
}

// ---- step strip and timing lanes -----------------------------------------------------------------------------------

function buildStrip(view) {
  const strip = h("canvas", { "aria-hidden": "true" });
  const lanes = h("canvas", { "aria-hidden": "true" });
  const slider = h(
    "div",
    {
      class: "dfl-strip",
      role: "slider",
      tabindex: "0",
      "aria-label": "Step",
      "aria-valuemin": 1,
      "aria-valuemax": view.n,
    },
    strip,
    lanes,
  );
  const note = h("div", { class: "dfl-strip-note" });
  view.note = note;
  let bins;
  const repaint = () => nextFrame(view, "strip", draw);
  const draw = () => {
    const width = slider.clientWidth;
    if (!width) return;
    bins = makeBins(view.n, width);
    drawBars(view, pen(strip, width, 56), bins);
    drawLanes(view, pen(lanes, width, 36), bins);
  };
  const move = () => {
    const { acc, k } = view.summary.steps;
    note.textContent = "";
    slider.setAttribute("aria-valuenow", view.step + 1);
    slider.setAttribute(
      "aria-valuetext",
      `Step ${view.step + 1} of ${view.n}, ${acc[view.step]} of ${k[view.step]} accepted`,
    );
    repaint();
  };
  view.parts.push({ repaint, move });
  const stepAt = (event) => {
    const at = (event.clientX - slider.getBoundingClientRect().left) / bins.width;
    return clamp(Math.floor(at) * bins.size, 0, view.n - 1);
  };
  let dragging = false;
  slider.addEventListener("pointerdown", (event) => {
    dragging = true;
    slider.setPointerCapture(event.pointerId);
    go(view, stepAt(event));
  });
  slider.addEventListener("pointermove", (event) => {
    const step = stepAt(event);
    note.textContent = stripNote(view, step, bins.size);
    if (dragging && step !== view.step) go(view, step);
  });
  for (const type of ["pointerup", "pointercancel"]) slider.addEventListener(type, () => (dragging = false));
  slider.addEventListener("pointerleave", () => (note.textContent = ""));
  const scale = h("span", { text: `full height = ${milliseconds(timeLimit(view.summary))} ms` });
  const key = PHASES.map((name) =>
    h("span", { class: "dfl-phase" }, h("i", { class: `dfl-swatch dfl-phase-${name}` }), name),
  );
  return h(
    "section",
    { class: "dfl-overview", "aria-label": "Steps" },
    slider,
    h("div", { class: "dfl-strip-foot" }, h("span", { class: "dfl-phases" }, ...key, scale), note),
  );
}

function stripNote(view, step, size) {
  const { acc, k, cause, ms } = view.summary.steps;
  const sum = total(ms[step]);
  const shares = PHASES.map(
    (name, i) => `${name} ${milliseconds(ms[step][i])} (${sum ? Math.round((100 * (ms[step][i] ?? 0)) / sum) : 0} %)`,
  );
  const group = size > 1 ? ` (bar: steps ${step + 1}–${Math.min(view.n, step + size)})` : "";
  return `step ${step + 1}${group} · ${acc[step]} of ${k[step]} · ${CAUSE_WORDS[cause[step]]} · ${shares.join(" · ")} ms`;
}

function drawBars(view, c, bins) {
  const { acc, k } = view.summary.steps;
  const { palette } = view;
  const most = Math.max(1, ...k);
  const body = 44;
  const base = 50;
  const inner = Math.max(2, bins.width - (bins.width > 5 ? 2 : 1));
  for (let bin = 0; bin < bins.count; bin++) {
    const from = bin * bins.size;
    const to = Math.min(view.n, from + bins.size);
    let [low, high, full, none] = [Infinity, 0, false, false];
    for (let i = from; i < to; i++) {
      low = Math.min(low, acc[i]);
      high = Math.max(high, acc[i]);
      full ||= k[i] > 0 && acc[i] === k[i];
      none ||= k[i] > 0 && acc[i] === 0;
    }
    const x = bin * bins.width;
    c.fillStyle = palette.line;
    c.fillRect(x, base - 1, inner, 1);
    c.fillStyle = palette.bar;
    c.globalAlpha = 0.45;
    c.fillRect(x, base - (high / most) * body, inner, ((high - low) / most) * body);
    c.globalAlpha = 1;
    c.fillRect(x, base - (low / most) * body, inner, (low / most) * body);
    c.fillStyle = palette.accepted;
    if (full) c.fillRect(x, base - (high / most) * body - 3, inner, 3);
    c.fillStyle = palette.rejected;
    if (none) c.fillRect(x, base, inner, 4);
    if (view.step >= from && view.step < to) outlineBar(c, palette, x, inner, 56);
  }
}

function outlineBar(c, palette, x, inner, height) {
  c.strokeStyle = palette.text;
  c.lineWidth = 1.5;
  c.strokeRect(Math.max(0.75, x - 0.75), 0.75, inner + 1.5, height - 1.5);
}

/** Full height of the timing lanes, milliseconds: the 98th percentile, so that one stall does not flatten the rest. */
function timeLimit(summary) {
  const totals = summary.steps.ms.map(total).sort((a, b) => a - b);
  return totals[Math.floor(0.98 * (totals.length - 1))] || 1;
}

function drawLanes(view, c, bins) {
  const { ms } = view.summary.steps;
  const limit = timeLimit(view.summary);
  const fills = PHASES.map((_, i) => phasePattern(c, view.palette, i));
  const inner = Math.max(2, bins.width - (bins.width > 5 ? 2 : 1));
  for (let bin = 0; bin < bins.count; bin++) {
    const from = bin * bins.size;
    const steps = ms.slice(from, from + bins.size);
    let y = 35;
    PHASES.forEach((_, phase) => {
      const mean = steps.reduce((sum, times) => sum + (times[phase] ?? 0), 0) / steps.length;
      const height = Math.min(y - 4, (mean / limit) * 31);
      c.fillStyle = fills[phase];
      c.fillRect(bin * bins.width, y - height, inner, height);
      y -= height;
    });
    if (steps.some((times) => total(times) > 1.02 * limit))
      triangle(c, bin * bins.width + inner / 2, 0, view.palette.text);
    if (view.step >= from && view.step < from + bins.size) outlineBar(c, view.palette, bin * bins.width, inner, 36);
  }
}

function triangle(c, x, y, colour, size = 3) {
  c.fillStyle = colour;
  c.beginPath();
  c.moveTo(x, y);
  c.lineTo(x + size, y + size);
  c.lineTo(x - size, y + size);
  c.fill();
}

/** The phases differ by pattern too: plain, dots, diagonals, bars. */
function phasePattern(c, palette, phase) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 4;
  const t = tile.getContext("2d");
  t.fillStyle = palette.phases[phase];
  t.fillRect(0, 0, 4, 4);
  t.fillStyle = palette.surface;
  if (phase === 1) t.fillRect(1, 1, 1, 1);
  if (phase === 2) range(4).forEach((i) => t.fillRect(i, 3 - i, 1, 1));
  if (phase === 3) t.fillRect(0, 1, 4, 1);
  return c.createPattern(tile, "repeat");
}

// ---- the bar: buttons and the headline -----------------------------------------------------------------------------

function buildBar(view) {
  const button = (text, label, action, extra = {}) =>
    h("button", {
      type: "button",
      class: "dfl-button",
      title: label,
      "aria-label": label,
      text,
      onclick: action,
      ...extra,
    });
  const counter = h("span", { class: "dfl-counter" });
  const headline = h("p", { class: "dfl-headline" });
  const live = h("p", { class: "dfl-hidden", "aria-live": "polite", role: "status" });
  view.say = live;
  view.playButton = button("▶", "Play (Space)", () => togglePlay(view), { "aria-pressed": "false" });
  view.prompt = buildPrompt(view);
  view.parts.push({
    move: () => (counter.textContent = `${view.step + 1} / ${view.n}`),
    step: () => paintHeadline(view, headline),
  });
  return h(
    "div",
    { class: "dfl-bar", role: "group", "aria-label": "Steps and view" },
    h(
      "div",
      { class: "dfl-nav" },
      button("«", "First step (Home)", () => go(view, 0)),
      button("‹", "Previous step (←)", () => go(view, view.step - 1)),
      counter,
      button("›", "Next step (→)", () => go(view, view.step + 1)),
      button("»", "Last step (End)", () => go(view, view.n - 1)),
      button("✗", "Next rejection (n)", () => jump(view, 1)),
      view.playButton,
    ),
    headline,
    live,
    view.prompt,
    h(
      "div",
      { class: "dfl-tools" },
      choice(view, "Fill", "fill", FILLS),
      choice(view, "Edges", "lines", EDGES),
      button("dense", "Dense grid (d)", () => setDense(view, !view.dense), {
        class: "dfl-button dfl-dense-button",
        "aria-pressed": "false",
      }),
      button("?", "Keys (?)", () => toggleSheet(view)),
    ),
  );
}

function paintHeadline(view, headline) {
  const step = view.current;
  const bold = step.depth ? `${step.acc} of ${step.depth} accepted` : "no drafter";
  const miss = ["selector", "drafter", "sampled", "unknown"].includes(step.cause) && step.depth;
  const cause = step.depth ? [CAUSE_WORDS[step.cause] + (miss ? ` at ${step.acc + 1}` : "")] : [];
  const rest = [...cause, `${milliseconds(total(step.ms))} ms`].join(" · ");
  headline.replaceChildren(h("b", { text: bold }), ` · ${rest}`);
  say(view, `Step ${step.i + 1} of ${view.n} · ${bold} · ${rest}`);
}

/** A message for everyone: shown under the strip until the next move, and spoken. */
function tell(view, text) {
  view.note.textContent = text;
  say(view, text);
}

/** Spoken once it stays for a moment, so that scrubbing is not read aloud. */
function say(view, text) {
  later(view, "say", view.host.testing ? 0 : 350, () => (view.say.textContent = text));
}

/** A group of buttons of which one is pressed; `name` is the field of `view` it sets. */
function choice(view, label, name, options) {
  const buttons = options.map(([value, text, title]) =>
    h("button", { type: "button", class: "dfl-button", title, text, onclick: () => setChoice(view, name, value) }),
  );
  const update = () =>
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(view[name] === options[i][0])));
  view.parts.push({ choice: update, move: update });
  return h(
    "span",
    { class: "dfl-choice", role: "group", "aria-label": label },
    h("span", { class: "dfl-dim", text: label }),
    ...buttons,
  );
}

function setChoice(view, name, value) {
  view[name] = value;
  view.parts.forEach((part) => {
    part.choice?.();
    part.repaint?.();
  });
}

function cycle(view, name, options) {
  const at = options.findIndex(([value]) => value === view[name]);
  setChoice(view, name, options[(at + 1) % options.length][0]);
  tell(view, options[(at + 1) % options.length][2]);
}

function setDense(view, dense) {
  view.dense = dense;
  view.root.classList.toggle("dfl-dense", dense);
  view.root.querySelector(".dfl-dense-button").setAttribute("aria-pressed", String(dense));
  view.parts.forEach((part) => part.repaint?.());
}

/** The one text field: go to a step, or find a token. */
function buildPrompt(view) {
  const input = h("input", { type: "text", class: "dfl-input", autocomplete: "off", spellcheck: "false" });
  const label = h("label", { class: "dfl-prompt" }, h("span"), input);
  label.hidden = true;
  let back = null;
  const close = () => {
    label.hidden = true;
    (back ?? view.root).focus({ preventScroll: true });
  };
  label.open = (text, action) => {
    back = view.root.contains(document.activeElement) ? document.activeElement : null;
    label.firstChild.textContent = text;
    label.action = action;
    input.value = "";
    label.hidden = false;
    input.focus();
  };
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter" && label.action(input.value)) close();
    if (event.key === "Escape") close();
  });
  return label;
}

function askStep(view) {
  view.prompt.open(`Go to step (1–${view.n})`, (text) => {
    const step = Number.parseInt(text, 10);
    if (step >= 1 && step <= view.n) go(view, step - 1);
    else tell(view, `There is no step ${text}; steps are 1 to ${view.n}.`);
    return step >= 1 && step <= view.n;
  });
}

function askToken(view) {
  view.prompt.open("Find in the output", (text) => {
    const step = findStep(view.summary, view.origins, text, view.step);
    if (step >= 0) go(view, step);
    else tell(view, `“${text}” does not occur in the output.`);
    return false;
  });
}

function buildLegend(view) {
  const mark = (cls, glyph, text) =>
    h("span", { class: "dfl-mark" }, h("i", { class: `dfl-key ${cls}`, text: glyph }), text);
  if (!view.drafted)
    return h("div", { class: "dfl-legend", text: "Autoregressive: one token of the target's own per step." });
  return h(
    "div",
    { class: "dfl-legend", "aria-label": "Legend", role: "group" },
    mark("dfl-p-accepted", "✓", "accepted"),
    mark("dfl-p-mismatch", "✗", "first mismatch"),
    mark("dfl-p-unchecked dfl-hatch", "–", "not checked"),
    mark("dfl-key-target", "◆", "the target's correction"),
    mark("dfl-ring", "", "that token in our list"),
    mark("dfl-key-bonus", "★", "bonus after full acceptance"),
    h("span", { class: "dfl-mark" }, h("i", { class: "dfl-ramp" }), "fill: low to high score"),
  );
}

// ---- candidate grid ------------------------------------------------------------------------------------------------

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

function showError(view, step, error) {
  const retry = h("button", { type: "button", class: "dfl-button", text: "Try again", onclick: () => load(view) });
  view.error.replaceChildren(
    h("p", {
      text: `Step ${step + 1} could not be read: ${error?.message ?? error}. Try again, or go to another step.`,
    }),
    retry,
  );
  view.error.hidden = false;
}

function buildGrid(view) {
  const table = h("table", { class: "dfl-grid", role: "grid", tabindex: "0", "aria-label": "Candidates by position" });
  const overlay = svg("svg", { class: "dfl-overlay", "aria-hidden": "true" });
  const wrap = h("div", { class: "dfl-gridwrap" }, table, overlay);
  const scroller = h("div", { class: "dfl-scroll" }, wrap);
  const grid = { view, table, overlay, wrap, scroller, shape: "", heads: [], cells: [], targets: [] };
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
  for (let j = 0; j < step.depth; j++) paintColumn(grid, step, j);
  paintTargets(grid, step);
  markCell(grid);
}

/** Makes the table for another number of positions or candidates; the focusable table itself stays. */
function shapeGrid(grid, step) {
  const { view } = grid;
  const cell = (attributes) =>
    h("td", attributes, h("div", { class: "dfl-c" }, h("bdi", { class: "dfl-t" }), h("span", { class: "dfl-n" })));
  grid.heads = range(step.depth).map(() => h("th", { scope: "col", role: "columnheader" }));
  grid.cells = range(step.depth).map((j) =>
    range(step.width).map((r) => cell({ role: "gridcell", id: `${view.uid}-${j}-${r}`, "data-at": `${j},${r}` })),
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
        head("rank", "dfl-rank"),
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

/** Leaves a node alone that already reads so: most cells of a grid change, most of their parts do not. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function paintColumn(grid, step, j) {
  const { view } = grid;
  const state = step.states[j];
  const head = grid.heads[j];
  head.textContent = `${j + 1} ${GLYPH[state]}`;
  head.className = `dfl-h-${state}`;
  head.title = `position ${j + 1}, sequence ${step.start + j + 1}: ${STATE_WORDS[state]}`;
  const bounds = view.fill === "p" ? null : columnBounds(step, view.fill, j);
  for (let r = 0; r < step.width; r++) {
    const cell = grid.cells[j][r];
    const box = cell.firstChild;
    const look = cellLook(step, view.fill, j, r, bounds);
    const onPath = r === step.path[j];
    const ring = state === "mismatch" && r + 1 === step.wantedRank;
    paintToken(cell, step.at(j, r));
    setText(box.lastChild, look.text);
    const colour = look.level === null ? null : ramp(view.palette, look.level);
    box.style.backgroundColor = colour ? css(colour) : "";
    box.style.color = colour ? inkOn(colour) : "";
    box.className = `dfl-c${onPath ? ` dfl-p-${state}` : ""}${ring ? " dfl-ring" : ""}${colour ? "" : " dfl-unset"}`;
    cell.className = state === "unchecked" || state === "cut" ? "dfl-hatch" : "";
    const words = `${onPath ? `, path, ${STATE_WORDS[state]}` : ""}${ring ? ", wanted by the target" : ""}`;
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
  const cell = grid.cells[view.pos]?.[view.rank];
  if (cell) {
    cell.classList.add("dfl-focus");
    table.setAttribute("aria-activedescendant", cell.id);
    nextFrame(view, "reveal", () => reveal(grid.scroller, cell));
  } else table.removeAttribute("aria-activedescendant");
  nextFrame(view, "overlay", () => drawOverlay(grid));
}

/** Scrolls `box` itself, never the page, until `node` is clear of its sticky edges. */
function reveal(box, node, left = 40) {
  const outer = box.getBoundingClientRect();
  const inner = node.getBoundingClientRect();
  if (inner.left < outer.left + left) box.scrollLeft -= outer.left + left - inner.left;
  if (inner.right > outer.right) box.scrollLeft += inner.right - outer.right + 8;
  if (inner.top < outer.top + 24) box.scrollTop -= outer.top + 24 - inner.top;
  if (inner.bottom > outer.bottom - 40) box.scrollTop += inner.bottom - outer.bottom + 40;
}

/** The path, and the edges asked for, over the cells. */
function drawOverlay(grid) {
  const { view, overlay, wrap } = grid;
  const step = view.current;
  const origin = wrap.getBoundingClientRect();
  if (!step?.depth || !origin.width) return overlay.replaceChildren();
  overlay.setAttribute("width", origin.width);
  overlay.setAttribute("height", origin.height);
  const box = (j, r) => {
    const cell = j < 0 ? grid.anchor : grid.cells[j]?.[r];
    if (!cell) return null;
    const rect = cell.firstChild.getBoundingClientRect();
    return {
      left: rect.left - origin.left,
      right: rect.right - origin.left,
      y: (rect.top + rect.bottom) / 2 - origin.top,
    };
  };
  const lines = [];
  if (view.lines === "all" && step.edges) lines.push(...allEdges(view, step, box));
  if (view.lines !== "path" && step.edges) lines.push(...focusEdges(view, step, box));
  for (let j = 0; j < step.depth; j++) {
    const [a, b] = [box(j - 1, step.path[j - 1]), box(j, step.path[j])];
    if (a && b)
      lines.push(
        svg("path", {
          class: `dfl-path dfl-path-${step.states[j]}`,
          d: `M${a.right} ${a.y}C${b.left} ${a.y} ${a.right} ${b.y} ${b.left} ${b.y}`,
        }),
      );
  }
  overlay.replaceChildren(...lines);
}

/** A line from inside the predecessor's cell, so that near neighbours stay apart. */
function edgeLine(view, a, b, value, width, halo = true) {
  const share = value / view.summary.edgeLimit;
  const signed = Math.sign(share || 1) * Math.max(0.35, Math.min(1, Math.abs(share)));
  const x = Math.max((a.left + a.right) / 2, a.right - 20);
  const d = `M${x} ${a.y}C${(x + b.left) / 2 + 6} ${a.y} ${(x + b.left) / 2} ${b.y} ${b.left + 2} ${b.y}`;
  const line = svg("path", {
    class: "dfl-edge",
    d,
    "stroke-width": width,
    stroke: css(diverging(view.palette, signed)),
  });
  return halo ? [svg("path", { class: "dfl-halo", d, "stroke-width": width + 2 }), line] : [line];
}

function focusEdges(view, step, box) {
  const { j, r } = view.hover ?? (view.explored ? { j: view.pos, r: view.rank } : { j: -1 });
  const top = strongest(step, j, r).filter(({ edge }) => Number.isFinite(edge));
  const target = box(j, r);
  if (!target || !top.length) return [];
  const high = top[0].edge;
  const weights = top.map(({ edge }) => Math.exp(edge - high));
  const sum = total(weights);
  return top.flatMap(({ e, edge }, i) => {
    const source = box(j - 1, e);
    return source ? edgeLine(view, source, target, edge, 1 + 4 * Math.sqrt(weights[i] / sum)) : [];
  });
}

function allEdges(view, step, box) {
  return range(step.depth).flatMap((j) =>
    range(step.width).flatMap((r) => {
      const [best] = strongest(step, j, r, 1);
      const [a, b] = [box(j - 1, best.e), box(j, r)];
      return a && b && Number.isFinite(best.edge) ? edgeLine(view, a, b, best.edge, 1, false) : [];
    }),
  );
}

// ---- hover card and detail panel -----------------------------------------------------------------------------------

function buildCard(view) {
  const card = h("div", { class: "dfl-card", role: "tooltip", id: `${view.uid}-card` });
  card.hidden = true;
  card.addEventListener("pointerleave", () => closeCard(view));
  view.card = card;
  return card;
}

function openCard(view, j, r) {
  const { card, root } = view;
  const cell = view.grid.cells[j]?.[r];
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

function closeCard(view) {
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

function pin(view) {
  const { current: step, pos, rank, pins } = view;
  if (!step?.depth) return;
  const key = `${step.i}:${pos}:${rank}`;
  if (pins.has(key)) pins.delete(key);
  else pins.set(key, { step, pos, rank });
  view.paintPins();
}

function buildDetail(view) {
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
  return h("aside", { class: "dfl-panel", "aria-label": "Detail" }, cause, lengths, sums, pins);
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

// ---- edge map ------------------------------------------------------------------------------------------------------

function buildEdges(view) {
  const thumbs = h("div", { class: "dfl-thumbs", role: "group", "aria-label": "Edge maps, one per pair of positions" });
  const canvas = h("canvas", { class: "dfl-pair", role: "img" });
  const readout = h("p", { class: "dfl-readout" });
  const into = h("div");
  const caption = h("p", { class: "dfl-dim dfl-caption" });
  const none = h("p", {
    class: "dfl-dim",
    text: "No edge scores in this step: the drafter has no selector, or they were not recorded.",
  });
  const body = h(
    "div",
    { class: "dfl-pairs" },
    thumbs,
    h("div", {}, canvas, readout),
    h("div", { class: "dfl-into" }, into, caption),
  );
  const edges = { view, thumbs, canvas, readout, into, buttons: [], layout: null };
  caption.textContent = `Score the selector adds for taking the column's token after the row's; the unary score is not included. Colour scale ±${view.summary.edgeLimit.toFixed(1)}, the same for the whole trace. □ on the path; ▲ in the middle: best in its column; ▲ ▼ in the corner: beyond the scale.`;
  const update = () => {
    const step = view.current;
    if (!step) return;
    body.hidden = !step.edges;
    none.hidden = Boolean(step.edges);
    if (step.edges) paintEdges(edges);
  };
  view.parts.push({ step: update, repaint: update, cell: (moved) => view.current.edges && paintPair(edges, moved) });
  canvas.addEventListener("pointermove", (event) => readPair(edges, event));
  canvas.addEventListener("pointerleave", () => (readout.textContent = "\u00a0"));
  canvas.addEventListener("click", (event) => {
    const at = pairAt(edges, event);
    if (at) focusCell(view, view.pos, at.r);
  });
  return h(
    "section",
    { class: "dfl-section dfl-edgemap", "aria-label": "Edge map" },
    h("h3", { text: "Edge map" }),
    none,
    body,
  );
}

function paintEdges(edges) {
  const { view, thumbs } = edges;
  const step = view.current;
  if (edges.buttons.length !== step.depth) {
    edges.buttons = range(step.depth).map((j) => {
      const label = `${j || "a"}→${j + 1}`;
      return h(
        "button",
        {
          type: "button",
          class: "dfl-thumb",
          "aria-label": `Edges into position ${j + 1}`,
          onclick: () => focusCell(view, j, step.path[j]),
        },
        h("canvas", { "aria-hidden": "true" }),
        h("span", { text: label }),
      );
    });
    thumbs.replaceChildren(...edges.buttons);
  }
  edges.buttons.forEach((button, j) => paintThumb(view, button.firstChild, j));
  paintPair(edges, true);
}

/** One canvas pixel per edge, enlarged by the style sheet. */
function paintThumb(view, canvas, j) {
  const { current: step, palette } = view;
  const { width } = step;
  canvas.width = canvas.height = width;
  canvas.style.width = canvas.style.height = `${width * (width <= 16 ? 4 : width <= 32 ? 2 : 1)}px`;
  const rows = step.numBefore(j);
  const image = new ImageData(width, rows);
  for (let i = 0; i < rows * width; i++) {
    const value = step.edges[j * width * width + i];
    image.data.set(diverging(palette, Number.isNaN(value) ? 0 : value / view.summary.edgeLimit), 4 * i);
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** The focused pair, with tokens on its axes; and the strongest edges into the focused candidate. */
function paintPair(edges, moved) {
  const { view } = edges;
  edges.buttons.forEach((button, j) => {
    button.setAttribute("aria-pressed", String(j === view.pos));
    button.tabIndex = j === view.pos ? 0 : -1;
  });
  if (moved) edges.readout.textContent = "\u00a0";
  drawPair(edges);
  paintInto(edges);
}

function drawPair(edges) {
  const { view, canvas } = edges;
  const { current: step, pos: j, palette } = view;
  const rows = step.numBefore(j);
  const size = step.width <= 8 ? 26 : step.width <= 16 ? 19 : step.width <= 32 ? 12 : 7;
  const [left, top] = [84, 62];
  edges.layout = { size, left, top, rows, columns: step.width };
  const c = pen(canvas, left + step.width * size + 46, top + rows * size + 4);
  const path = step.path[j];
  for (let r = 0; r < step.width; r++) {
    let best = 0;
    for (let e = 0; e < rows; e++) {
      const value = step.edge(j, e, r);
      const share = value / view.summary.edgeLimit;
      const colour = diverging(palette, Number.isNaN(share) ? 0 : share);
      const [x, y] = [left + r * size, top + e * size];
      c.fillStyle = css(colour);
      c.fillRect(x, y, size - 1, size - 1);
      if (size >= 12 && (Math.abs(share) > 1 || Number.isNaN(share)))
        specialGlyph(c, share, x + size - 2, y + 5, inkOn(colour));
      if (value > step.edge(j, best, r)) best = e;
    }
    const shade = diverging(palette, step.edge(j, best, r) / view.summary.edgeLimit);
    if (size >= 12) triangle(c, left + r * size + size / 2 - 0.5, top + best * size + size / 2 - 2, inkOn(shade), 3.5);
  }
  c.strokeStyle = palette.text;
  c.lineWidth = 2;
  if (path < step.width) c.strokeRect(left + path * size - 1, top + step.from(j) * size - 1, size + 1, size + 1);
  if (size >= 12) labelPair(c, view, step, edges.layout);
  canvas.setAttribute(
    "aria-label",
    `Edge scores from ${j ? `position ${j}` : "the anchor"} to position ${j + 1}; the list beside it gives the strongest.`,
  );
}

/** In the corner: ▲ ▼ beyond the scale, −∞ masked, · not a number. */
function specialGlyph(c, share, x, y, colour) {
  c.fillStyle = colour;
  c.font = "8px sans-serif";
  c.textAlign = "right";
  c.fillText(Number.isNaN(share) ? "·" : share === -Infinity ? `${MINUS}∞` : share > 0 ? "▲" : "▼", x, y);
}

function labelPair(c, view, step, { size, left, top, rows, columns }) {
  const { palette, pos: j } = view;
  const bold = (on) => `${on ? "700 " : ""}${Math.min(11, size - 2)}px ui-monospace, "DejaVu Sans Mono", monospace`;
  c.textBaseline = "middle";
  c.fillStyle = palette.text;
  c.textAlign = "right";
  for (let e = 0; e < rows; e++) {
    c.font = bold(e === step.from(j));
    c.fillText(shorten(visible(step.before(j, e)), 10), left - 6, top + e * size + size / 2);
  }
  c.textAlign = "left";
  for (let r = 0; r < columns; r++) {
    c.font = bold(r === step.path[j]);
    c.save();
    c.translate(left + r * size + size / 2, top - 5);
    c.rotate(-Math.PI / 3);
    c.fillText(shorten(visible(step.at(j, r)), 9), 0, 0);
    c.restore();
  }
}

const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });
/** At most `length` user-perceived characters. */
export function shorten(text, length) {
  const parts = [];
  for (const { segment } of segmenter.segment(text)) {
    if (parts.length === length) return `${parts.slice(0, -1).join("")}…`;
    parts.push(segment);
  }
  return text;
}

function pairAt({ canvas, layout }, event) {
  const box = canvas.getBoundingClientRect();
  const r = Math.floor((event.clientX - box.left - layout.left) / layout.size);
  const e = Math.floor((event.clientY - box.top - layout.top) / layout.size);
  return r >= 0 && r < layout.columns && e >= 0 && e < layout.rows ? { e, r } : null;
}

function readPair(edges, event) {
  const { view, readout } = edges;
  const at = pairAt(edges, event);
  const { current: step, pos: j } = view;
  readout.replaceChildren("\u00a0");
  if (!at) return;
  const sum = `edge ${score(step.edge(j, at.e, at.r), 2, true)}, with unary ${score(step.score(j, at.r, at.e))}`;
  readout.replaceChildren(bdi(step.before(j, at.e), "dfl-mono"), " → ", bdi(step.at(j, at.r), "dfl-mono"), `  ${sum}`);
}

function paintInto({ view, into }) {
  const { current: step, pos: j, rank: r } = view;
  const rows = strongest(step, j, r).map(({ e, edge, score: sum }) => {
    const bar = h("i", { class: edge < 0 ? "dfl-neg" : "dfl-pos" });
    bar.style.width = `${clamp(Math.abs(edge) / view.summary.edgeLimit, 0, 1) * 60}px`;
    const cls = e === step.from(j) ? "dfl-onpath" : null;
    return h(
      "tr",
      { class: cls },
      h("td", { class: "dfl-sum-token" }, bdi(step.before(j, e))),
      h("td", { text: j ? e + 1 : "–" }),
      h("td", { text: score(edge, 2, true) }),
      h("td", { text: score(sum) }),
      h("td", { class: "dfl-barcell" }, bar),
    );
  });
  const head = ["from", "rank", "edge", "score", ""].map((text) => (text ? h("th", { scope: "col", text }) : h("td")));
  into.replaceChildren(
    h(
      "h4",
      {},
      "Strongest edges into ",
      bdi(step.at(j, r), "dfl-mono"),
      h("span", { class: "dfl-dim", text: ` position ${j + 1}, rank ${r + 1}` }),
    ),
    h("table", { class: "dfl-sums" }, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows)),
  );
}

// ---- output text ---------------------------------------------------------------------------------------------------

function buildText(view) {
  const { summary } = view;
  const body = h("div", { class: "dfl-text", tabindex: "0", role: "region", "aria-label": "Output text" });
  const plain = h("pre", { class: "dfl-plain", dir: "auto", text: summary.text });
  plain.hidden = true;
  const text = { view, body, plain, chunks: makeChunks(summary), nodes: [], spans: new Map(), marked: [] };
  text.nodes = text.chunks.map(([from, to]) => {
    const node = h("div", { class: "dfl-chunk", dir: "auto" });
    node.style.minHeight = `${Math.ceil((to - from) / 22) * 22}px`;
    return node;
  });
  body.append(...text.nodes, plain);
  const observer = new IntersectionObserver(
    (entries) => entries.forEach((entry) => entry.isIntersecting && fillChunk(text, text.nodes.indexOf(entry.target))),
    { root: body, rootMargin: "400px" },
  );
  text.nodes.forEach((node) => observer.observe(node));
  if (text.nodes.length) fillChunk(text, 0); // at once, for a page that is printed or photographed unscrolled
  view.undo.push(() => observer.disconnect());
  body.addEventListener("click", (event) => {
    const at = event.target.closest?.("[data-k]");
    if (at) goToken(view, Number(at.dataset.k));
  });
  view.parts.push({ move: () => markStep(text) });
  const toggle = h("button", {
    type: "button",
    class: "dfl-button",
    "aria-pressed": "false",
    title: "Plain text (l)",
    text: "plain",
    onclick: () => view.setPlain(!view.plain),
  });
  view.setPlain = (on) => {
    view.plain = on;
    toggle.setAttribute("aria-pressed", String(on));
    plain.hidden = !on;
    text.nodes.forEach((node) => (node.hidden = on));
    if (!on) markStep(text);
  };
  return h(
    "section",
    { class: "dfl-section", "aria-label": "Output" },
    h(
      "div",
      { class: "dfl-section-head" },
      h("h3", { text: "Output" }),
      view.drafted ? textLegend() : h("span", { class: "dfl-textlegend" }),
      toggle,
      copyButton(view, "copy text", () => summary.text),
      copyButton(view, "copy ids", () => summary.output.join(" ")),
    ),
    buildPromptText(summary),
    body,
  );
}

function textLegend() {
  const mark = (cls, text) => h("span", { class: `dfl-tok ${cls}`, text });
  return h(
    "span",
    { class: "dfl-textlegend" },
    mark("dfl-o-accepted", "accepted"),
    mark("dfl-o-correction", "correction"),
    mark("dfl-o-bonus", "bonus"),
  );
}

function copyButton(view, label, content) {
  const button = h("button", { type: "button", class: "dfl-button", text: label });
  button.addEventListener("click", async () => {
    const done = await navigator.clipboard?.writeText(content()).then(
      () => true,
      () => false,
    );
    say(view, done ? "Copied." : "The browser did not allow copying.");
    button.textContent = done ? "copied" : "not allowed";
    later(view, label, 1500, () => (button.textContent = label));
  });
  return button;
}

function buildPromptText(summary) {
  if (!summary.prompt) return null;
  const more =
    summary.promptChars > summary.prompt.length
      ? `, first ${summary.prompt.length} of ${summary.promptChars} characters`
      : "";
  return h(
    "details",
    { class: "dfl-prompttext" },
    h("summary", { text: `Prompt, ${summary.promptTokens} tokens${more}` }),
    h("pre", { class: "dfl-plain", dir: "auto", text: summary.prompt }),
  );
}

function goToken(view, k) {
  const { step, at } = view.origins[k];
  view.wantedPos = step >= 0 && view.summary.steps.k[step] ? Math.min(at, view.summary.steps.k[step] - 1) : null;
  if (Math.max(0, step) === view.step && view.current) paint(view, view.current);
  go(view, Math.max(0, step));
}

function fillChunk(text, index) {
  const node = text.nodes[index];
  if (node.firstChild) return;
  const [from, to] = text.chunks[index];
  const { summary, origins } = text.view;
  for (let k = from; k < to;) {
    const run = bytesFrom(summary, k, to);
    if (k > from && origins[k].step !== origins[k - 1].step) node.append(h("span", { class: "dfl-sep" }));
    node.append(run.length > 1 || run.hex ? byteSpan(text, k, run) : tokenSpan(text, k), h("wbr"));
    if (summary.tokens[summary.output[k]]?.t.includes("\n")) node.append(h("br"));
    k += run.length;
  }
  node.style.minHeight = "";
}

/** The byte pieces from token `k` on: {hex, length}; length 1 and no hex if it is none. */
function bytesFrom(summary, k, to) {
  let [hex, end] = ["", k];
  for (; end < to && summary.tokens[summary.output[end]]?.b; end++) hex += summary.tokens[summary.output[end]].b;
  return { hex, length: Math.max(1, end - k) };
}

function byteSpan(text, k, { hex, length }) {
  const span = h("span", { class: "dfl-tok dfl-pill", "data-k": k, text: byteRun(hex) });
  range(length).forEach((i) => text.spans.set(k + i, span));
  return span;
}

function tokenSpan(text, k) {
  const { summary, origins } = text.view;
  const token = summary.tokens[summary.output[k]] ?? NO_TOKEN;
  const { step, origin } = origins[k];
  const title = step < 0 ? "from prefill" : `step ${step + 1}, ${origin}`;
  const span = h("bdi", {
    class: `dfl-tok dfl-o-${origin}${token.s ? " dfl-pill" : ""}`,
    "data-k": k,
    title,
    text: visible(token),
  });
  text.spans.set(k, span);
  return span;
}

function markStep(text) {
  const { view } = text;
  text.marked.forEach((span) => span.classList.remove("dfl-now"));
  text.marked = [];
  const first = view.firstTokens[view.step];
  const count = view.summary.steps.com[view.step];
  range(count).forEach((i) => {
    const chunk = text.chunks.findIndex(([from, to]) => first + i >= from && first + i < to);
    if (chunk >= 0) fillChunk(text, chunk);
    const span = text.spans.get(first + i);
    if (span) text.marked.push(span);
  });
  text.marked.forEach((span) => span.classList.add("dfl-now"));
  const [head] = text.marked;
  if (head && !view.plain) nextFrame(view, "text", () => reveal(text.body, head, 0));
}

// ---- keys ----------------------------------------------------------------------------------------------------------

function buildSheet(view) {
  const offered = KEYS.filter(([key]) => key !== "y" || view.host.onPermalink);
  const rows = offered.map(([key, what]) =>
    h("tr", {}, h("th", { scope: "row" }, h("kbd", { text: key })), h("td", { text: what })),
  );
  const close = h("button", { type: "button", class: "dfl-button", text: "Close", onclick: () => toggleSheet(view) });
  const sheet = h(
    "div",
    { class: "dfl-sheet", role: "dialog", "aria-label": "Keys", tabindex: "-1" },
    h("h3", { text: "Keys" }),
    h("table", {}, h("tbody", {}, ...rows)),
    close,
  );
  sheet.hidden = true;
  view.sheet = sheet;
  return sheet;
}

function toggleSheet(view) {
  const { sheet, root } = view;
  sheet.hidden = !sheet.hidden;
  if (!sheet.hidden) {
    sheet.style.top = `${Math.max(16, 80 - root.getBoundingClientRect().top)}px`;
    view.back = root.contains(document.activeElement) ? document.activeElement : root;
    sheet.focus({ preventScroll: true });
  } else view.back?.focus({ preventScroll: true });
}

function leave(view) {
  if (!view.sheet.hidden) return toggleSheet(view);
  if (closeCard(view)) return undefined;
  if (view.pins.size) {
    view.pins.clear();
    return view.paintPins();
  }
  return document.activeElement.blur();
}

function toggleFullScreen(view) {
  if (document.fullscreenElement) document.exitFullscreen();
  else view.root.requestFullscreen?.().catch(() => tell(view, "The browser did not allow full screen."));
}

function moveColumn(view, by) {
  if (!view.current?.depth) return;
  const pos = clamp(view.pos + by, 0, view.current.depth - 1);
  focusCell(view, pos, view.current.path[pos], { card: true });
}

const ACTIONS = {
  ArrowLeft: (view, event) => (event.shiftKey ? moveColumn(view, -1) : go(view, view.step - 1)),
  ArrowRight: (view, event) => (event.shiftKey ? moveColumn(view, 1) : go(view, view.step + 1)),
  ",": (view) => go(view, view.step - 1),
  ".": (view) => go(view, view.step + 1),
  ArrowUp: (view) => focusCell(view, view.pos, view.rank - 1, { card: true }),
  ArrowDown: (view) => focusCell(view, view.pos, view.rank + 1, { card: true }),
  PageUp: (view) => go(view, view.step - 10),
  PageDown: (view) => go(view, view.step + 10),
  Home: (view) => go(view, 0),
  End: (view) => go(view, view.n - 1),
  n: (view) => jump(view, 1),
  N: (view) => jump(view, -1),
  g: askStep,
  "/": askToken,
  " ": togglePlay,
  Enter: pin,
  p: (view) => cycle(view, "fill", FILLS),
  e: (view) => cycle(view, "lines", EDGES),
  d: (view) => setDense(view, !view.dense),
  l: (view) => view.setPlain(!view.plain),
  f: toggleFullScreen,
  y: (view) => view.host.onPermalink?.(place(view)),
  "?": toggleSheet,
  Escape: leave,
};

function onKey(view, event) {
  const { target, key } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, [contenteditable]"))
    return;
  if ((key === "Enter" || key === " ") && target.closest("button, summary, a")) return;
  const action = ACTIONS[key];
  if (!action) return;
  event.preventDefault();
  event.stopPropagation();
  action(view, event);
}
