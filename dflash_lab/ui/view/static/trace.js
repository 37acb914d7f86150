/* The whole trace: bars, chunks of text, origins, and steps fetched on demand. */

import { clamp } from "./numbers.js";
import { NO_TOKEN, readStep } from "./step.js";

const CACHE = 64;
const AHEAD = 8;
const CHUNK = 500;

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

const COMPARED = {
  "=": (a, b) => a === b,
  "<": (a, b) => a < b,
  ">": (a, b) => a > b,
  "<=": (a, b) => a <= b,
  ">=": (a, b) => a >= b,
};

/** The steps that a query means, as a set: `accepted >= 3`, `cause = drafter`, else those at which the text begins. */
export function matchingSteps(summary, origins, query) {
  const { acc, cause } = summary.steps;
  const counted = /^\s*accepted\s*(<=|>=|=|<|>)\s*(\d+)\s*$/i.exec(query);
  const caused = /^\s*cause\s*=\s*(\w+)\s*$/i.exec(query);
  if (counted) return indices(acc, (value) => COMPARED[counted[1]](value, Number(counted[2])));
  if (caused) return indices(cause, (value) => value === caused[1].toLowerCase());
  return stepsWithText(summary, origins, query);
}

const indices = (values, holds) => new Set(values.flatMap((value, i) => (holds(value) ? [i] : [])));

function stepsWithText(summary, origins, needle) {
  const texts = summary.output.map((id) => (summary.tokens[id] ?? NO_TOKEN).t.toLowerCase());
  const text = texts.join("");
  const wanted = needle.toLowerCase();
  const found = new Set();
  let [k, end] = [0, texts[0]?.length ?? 0];
  for (let at = text.indexOf(wanted); wanted && at >= 0; at = text.indexOf(wanted, at + 1)) {
    while (end <= at) end += texts[++k].length;
    found.add(Math.max(0, origins[k].step));
  }
  return found;
}

/** Steps fetched on demand: one promise per step, a cache of 64, neighbours ahead of time; decoded when looked at. */
export function stepStore(getStep, count) {
  const ready = new Map();
  const pending = new Map();
  let wave = 0;
  const store = {
    peek: (i) => ready.get(i)?.(),
    get(i) {
      const step = ready.get(i);
      if (step) {
        ready.delete(i);
        ready.set(i, step);
        return Promise.resolve(step());
      }
      if (!pending.has(i)) pending.set(i, fetchStep(i));
      return pending.get(i).then((fetched) => fetched());
    },
    async prefetch(centre) {
      const own = ++wave;
      for (let d = 1; d <= AHEAD; d++) {
        for (const i of [centre + d, centre - d]) {
          if (own !== wave) return;
          if (i < 0 || i >= count() || ready.has(i)) continue;
          if (!pending.has(i)) pending.set(i, fetchStep(i));
          await pending.get(i).catch(() => {});
        }
      }
    },
    stop: () => wave++,
    forget(holds) {
      for (const [i, step] of ready) if (holds(step())) ready.delete(i);
    },
  };
  async function fetchStep(i) {
    try {
      const step = once(readStep, await getStep(i));
      ready.set(i, step);
      if (ready.size > CACHE) ready.delete(ready.keys().next().value);
      return step;
    } finally {
      pending.delete(i);
    }
  }
  return store;
}

/** `make(value)` when it is first asked for, and that ever after. */
function once(make, value) {
  let made = null;
  return () => (made ??= make(value));
}
