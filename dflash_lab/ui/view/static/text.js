/* The output text. */

import { css, decodeBuffer, inkOn, probability, ramp, range, score } from "./numbers.js";
import { NO_TOKEN, visible } from "./step.js";
import { byteRun, makeChunks } from "./trace.js";
import { h, later, nextFrame, reveal } from "./dom.js";
import { go, paint, say } from "./moves.js";
import { offered } from "./options.js";
import { choice } from "./bar.js";

const TIE = 0.25;
const WIDE_MARGIN = 6;

/** Per output token what the target found: {p, margin}, each null where nothing was recorded. */
export function readLayers({ layers }) {
  return { p: decodeBuffer(layers?.p), margin: decodeBuffer(layers?.margin) };
}

export function buildText(view) {
  const body = h("div", { class: "dfl-text", tabindex: "0", role: "region", "aria-label": "Output text" });
  const plain = h("pre", { class: "dfl-plain", dir: "auto" });
  const text = { view, body, plain, chunks: [], nodes: [], spans: new Map(), marked: [] };
  if (!offered(view, "layer").some(([value]) => value === view.layer)) view.layer = "origin";
  body.append(plain);
  text.observer = new IntersectionObserver(
    (entries) => entries.forEach((entry) => entry.isIntersecting && fillChunk(text, text.nodes.indexOf(entry.target))),
    { root: body, rootMargin: "400px" },
  );
  setChunks(text);
  if (text.nodes.length) fillChunk(text, 0); // at once, for a page that is printed or photographed unscrolled
  view.undo.push(() => text.observer.disconnect());
  body.addEventListener("click", (event) => {
    const at = event.target.closest?.("[data-k]");
    if (at) goToken(view, Number(at.dataset.k));
  });
  view.parts.push({ move: () => markStep(text), repaint: () => paintLayer(text), grow: () => setChunks(text) });
  return h(
    "section",
    { class: "dfl-section", "aria-label": "Output" },
    h(
      "div",
      { class: "dfl-section-head" },
      h("h3", { text: "Output" }),
      view.drafted ? textLegend() : h("span", { class: "dfl-textlegend" }),
      choice(view, "Text", "layer"),
      copyButton(view, "copy text", () => view.summary.text),
      copyButton(view, "copy ids", () => view.summary.output.join(" ")),
    ),
    buildPromptText(view.summary),
    body,
  );
}

/** A node for every chunk; those that stay as they were are left alone, when the text has grown. */
function setChunks(text) {
  const { view, body, plain, nodes, observer } = text;
  const chunks = makeChunks(view.summary);
  const same = chunks.findIndex(([from, to], i) => text.chunks[i]?.[0] !== from || text.chunks[i]?.[1] !== to);
  plain.textContent = view.summary.text;
  if (same < 0) return;
  for (const node of nodes.splice(same)) {
    observer.unobserve(node);
    node.remove();
  }
  for (const [from, to] of chunks.slice(same)) {
    const node = h("div", { class: "dfl-chunk", dir: "auto" });
    node.style.minHeight = `${Math.ceil((to - from) / 22) * 22}px`;
    body.insertBefore(node, plain);
    observer.observe(node);
    nodes.push(node);
  }
  text.chunks = chunks;
}

function paintLayer(text) {
  const { view, body, plain, nodes } = text;
  const hidden = view.layer === "plain";
  body.dataset.layer = view.layer;
  plain.hidden = !hidden;
  nodes.forEach((node) => (node.hidden = hidden));
  text.spans.forEach((span, k) => shade(text, span, k));
  if (!hidden) markStep(text);
}

/** The darker, the less sure the target was. */
function shade({ view }, span, k) {
  const value = view.layers[view.layer]?.[k];
  const known = Number.isFinite(value);
  const level = view.layer === "p" ? 1 - value : 1 - value / WIDE_MARGIN;
  const colour = known ? ramp(view.palette, 0.9 * level) : null;
  span.style.backgroundColor = colour ? css(colour) : "";
  span.style.color = colour ? inkOn(colour) : "";
  span.classList.toggle("dfl-tie", known && view.layer === "margin" && value < TIE);
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
  if (!node || node.firstChild) return;
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
  const title = [step < 0 ? "from prefill" : `step ${step + 1}, ${origin}`, ...layerWords(text.view.layers, k)].join(" · ");
  const span = h("bdi", {
    class: `dfl-tok dfl-o-${origin}${token.s ? " dfl-pill" : ""}`,
    "data-k": k,
    title,
    text: visible(token),
  });
  text.spans.set(k, span);
  if (text.view.palette) shade(text, span, k);
  return span;
}

function layerWords({ p, margin }, k) {
  return [
    ...(Number.isFinite(p?.[k]) ? [`target p ${probability(p[k])}`] : []),
    ...(Number.isFinite(margin?.[k]) ? [`top-2 margin ${score(margin[k])}`] : []),
  ];
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
  if (head && view.layer !== "plain") nextFrame(view, "text", () => reveal(text.body, head, 0));
}
