/* Moving through the trace: which step, which cell, and who is told. */

import { clamp } from "./numbers.js";
import { h, later } from "./dom.js";

export function go(view, step, { silent = false } = {}) {
  view.step = clamp(Math.trunc(step) || 0, 0, view.n - 1);
  view.parts.forEach((part) => part.move?.());
  if (!silent) {
    setFollowing(view, false);
    announce(view);
  }
  load(view);
}

/** Whether the view goes along with a run that goes on: until the reader moves. */
export function setFollowing(view, on) {
  view.following = on && view.summary.status === "running";
  view.parts.forEach((part) => part.follow?.());
  if (view.following) go(view, view.n - 1, { silent: true });
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

export function paint(view, step) {
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

export function focusCell(view, pos, rank, { silent = false, card = false } = {}) {
  const step = view.current;
  if (!step?.depth) return;
  const moved = pos !== view.pos;
  view.explored = true;
  view.pos = clamp(pos, 0, step.depth - 1);
  view.rank = clamp(rank, 0, step.width - 1);
  view.parts.forEach((part) => part.cell?.(moved, card));
  if (!silent) announce(view);
}

export const place = (view) => ({ step: view.step, pos: view.pos + 1, rank: view.rank + 1 });

function announce(view) {
  later(view, "select", 120, () => view.host.onSelect?.(place(view)));
}

/** To the next step, or the previous one, that the filter leaves; without one, at which a proposal was rejected. */
export function jump(view, direction) {
  const { acc, k } = view.summary.steps;
  const holds = view.matches ? (i) => view.matches.has(i) : (i) => acc[i] < k[i];
  for (let i = view.step + direction; i >= 0 && i < view.n; i += direction) if (holds(i)) return go(view, i);
  const what = view.matches ? "match" : "rejection";
  return tell(view, direction > 0 ? `No ${what} after this step.` : `No ${what} before this step.`);
}

export function togglePlay(view) {
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

/** A message for everyone: shown under the strip until the next move, and spoken. */
export function tell(view, text) {
  view.note.textContent = text;
  say(view, text);
}

/** Spoken once it stays for a moment, so that scrubbing is not read aloud. */
export function say(view, text) {
  later(view, "say", view.host.testing ? 0 : 350, () => (view.say.textContent = text));
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
