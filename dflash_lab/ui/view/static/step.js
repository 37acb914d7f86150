/* One step as the page needs it, and what can be said of it. */

import { decodeBuffer, percent, probability, range, score, total } from "./numbers.js";

export const GLYPH = { accepted: "✓", mismatch: "✗", unchecked: "–", cut: "✂" };

export const STATE_WORDS = {
  accepted: "accepted",
  mismatch: "first mismatch",
  unchecked: "not checked",
  cut: "accepted, cut off by stop or length",
};

export const NO_TOKEN = { t: "?" };

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

export function columnBounds(step, mode, j) {
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

export const CAUSE_WORDS = {
  selector: "selector miss",
  drafter: "drafter miss",
  full: "all accepted",
  stop: "cut by stop or length",
  sampled: "rejected by sampling",
  unknown: "cause not recorded",
};
