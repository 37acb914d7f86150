/* Step strip and timing lanes. */

import { clamp, milliseconds, PHASES, range, total } from "./numbers.js";
import { CAUSE_WORDS } from "./step.js";
import { makeBins, matchingSteps } from "./trace.js";
import { h, nextFrame, pen, triangle } from "./dom.js";
import { go, jump } from "./moves.js";

export function buildStrip(view) {
  const [strip, lanes, cursor] = range(3).map(() => h("canvas", { "aria-hidden": "true" }));
  const slider = h(
    "div",
    { class: "dfl-strip", role: "slider", tabindex: "0", "aria-label": "Step", "aria-valuemin": 1 },
    strip,
    lanes,
    cursor,
  );
  const { note } = view;
  let bins;
  // The bars stay as they are while one moves through them: only the outline is drawn anew.
  const draw = () => {
    const width = slider.clientWidth;
    if (!width) return;
    bins = makeBins(view.n, width);
    drawBars(view, pen(strip, width, 56), bins);
    drawLanes(view, pen(lanes, width, 36), bins);
    drawCursor();
  };
  const drawCursor = () => {
    if (!bins) return;
    const c = pen(cursor, slider.clientWidth, 96);
    const x = Math.floor(view.step / bins.size) * bins.width;
    outlineBar(c, view.palette, x, barWidth(bins), 60, 36);
    if (view.drafted) outlineBar(c, view.palette, x, barWidth(bins), 0, 56);
  };
  const move = () => {
    const { acc, k } = view.summary.steps;
    note.textContent = "";
    slider.setAttribute("aria-valuenow", view.step + 1);
    slider.setAttribute(
      "aria-valuetext",
      `Step ${view.step + 1} of ${view.n}, ${acc[view.step]} of ${k[view.step]} accepted`,
    );
    nextFrame(view, "cursor", drawCursor);
  };
  const repaint = () => nextFrame(view, "strip", draw);
  view.parts.push({ repaint, move, filter: repaint });
  scrub(view, slider, () => bins);
  const scale = h("span");
  const grow = () => {
    scale.textContent = `full height = ${milliseconds(timeLimit(view.summary))} ms`;
    slider.setAttribute("aria-valuemax", view.n);
  };
  grow();
  view.parts.push({ grow });
  const key = PHASES.map((name) =>
    h("span", { class: "dfl-phase" }, h("i", { class: `dfl-swatch dfl-phase-${name}` }), name),
  );
  return h(
    "section",
    { class: "dfl-overview", "aria-label": "Steps" },
    slider,
    h("div", { class: "dfl-strip-foot" }, h("span", { class: "dfl-phases" }, ...key, scale), note, buildFilter(view)),
  );
}

/** Press and drag: the step under the pointer. */
function scrub(view, slider, bins) {
  const stepAt = (event) => {
    const at = (event.clientX - slider.getBoundingClientRect().left) / bins().width;
    return clamp(Math.floor(at) * bins().size, 0, view.n - 1);
  };
  let dragging = false;
  slider.addEventListener("pointerdown", (event) => {
    dragging = true;
    slider.setPointerCapture(event.pointerId);
    go(view, stepAt(event));
  });
  slider.addEventListener("pointermove", (event) => {
    const step = stepAt(event);
    if (dragging && step !== view.step) go(view, step);
    view.note.textContent = stripNote(view, step, bins().size);
  });
  for (const type of ["pointerup", "pointercancel"]) slider.addEventListener(type, () => (dragging = false));
  slider.addEventListener("pointerleave", () => (view.note.textContent = ""));
}

/** The field that leaves some of the steps: the others pale in the strip, and n and N pass over them. */
function buildFilter(view) {
  const input = h("input", {
    type: "text",
    class: "dfl-input dfl-find",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "text, or accepted = 0, or cause = drafter",
  });
  const found = h("span", { class: "dfl-found", "aria-live": "polite" });
  const update = () => {
    const query = input.value;
    view.matches = query.trim() ? matchingSteps(view.summary, view.origins, query) : null;
    found.textContent = view.matches ? `${view.matches.size} of ${view.n} steps` : "";
    view.parts.forEach((part) => part.filter?.());
  };
  input.addEventListener("input", update);
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter") jump(view, event.shiftKey ? -1 : 1);
    if (event.key !== "Escape") return;
    input.value = "";
    update();
    view.root.querySelector(".dfl-strip").focus({ preventScroll: true });
  });
  view.parts.push({ grow: update });
  view.find = input;
  return h("label", { class: "dfl-filter" }, "Filter ", input, found);
}

const barWidth = (bins) => Math.max(2, bins.width - (bins.width > 5 ? 2 : 1));

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
  const inner = barWidth(bins);
  for (let bin = 0; bin < bins.count; bin++) {
    const from = bin * bins.size;
    const to = Math.min(view.n, from + bins.size);
    let [low, high, full, none, left] = [Infinity, 0, false, false, !view.matches];
    for (let i = from; i < to; i++) {
      low = Math.min(low, acc[i]);
      high = Math.max(high, acc[i]);
      full ||= k[i] > 0 && acc[i] === k[i];
      none ||= k[i] > 0 && acc[i] === 0;
      left ||= view.matches.has(i);
    }
    const strength = left ? 1 : 0.2;
    const x = bin * bins.width;
    c.fillStyle = palette.line;
    c.fillRect(x, base - 1, inner, 1);
    c.fillStyle = palette.bar;
    c.globalAlpha = 0.45 * strength;
    c.fillRect(x, base - (high / most) * body, inner, ((high - low) / most) * body);
    c.globalAlpha = strength;
    c.fillRect(x, base - (low / most) * body, inner, (low / most) * body);
    c.fillStyle = palette.accepted;
    if (full) c.fillRect(x, base - (high / most) * body - 3, inner, 3);
    c.fillStyle = palette.rejected;
    if (none) c.fillRect(x, base, inner, 4);
    c.globalAlpha = 1;
  }
}

function outlineBar(c, palette, x, inner, top, height) {
  c.strokeStyle = palette.text;
  c.lineWidth = 1.5;
  c.strokeRect(Math.max(0.75, x - 0.75), top + 0.75, inner + 1.5, height - 1.5);
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
  const inner = barWidth(bins);
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
  }
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
