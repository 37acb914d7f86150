/* Header, buttons, headline and legend. */

import { milliseconds, total } from "./numbers.js";
import { CAUSE_WORDS } from "./step.js";
import { h } from "./dom.js";
import { go, jump, say, setFollowing, tell, togglePlay } from "./moves.js";
import { startTour } from "./tour.js";
import { nextOption, offered, OPTIONS, setOption } from "./options.js";

export function buildHeader(view) {
  const header = h("header", { class: "dfl-header" });
  const grow = () => header.replaceChildren(...headerParts(view));
  grow();
  view.parts.push({ grow });
  return header;
}

function headerParts(view) {
  const { summary } = view;
  const chips = summary.chips.map(([label, value]) =>
    h("span", { class: "dfl-chip" }, h("span", { class: "dfl-dim", text: `${label} ` }), value),
  );
  if (summary.status !== "complete") chips.unshift(h("span", { class: "dfl-chip dfl-warn", text: summary.status }));
  return [
    h("div", { class: "dfl-title" }, h("strong", { text: summary.name }), ...chips),
    buildTotals(view),
    ...(summary.warnings.length ? [buildWarnings(summary.warnings)] : []),
  ];
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

export function buildBar(view) {
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
  const dense = button("dense", OPTIONS.dense[1][2], () => setOption(view, "dense", !view.dense), {
    class: "dfl-button dfl-dense-button",
  });
  const showDense = () => {
    view.root.classList.toggle("dfl-dense", view.dense);
    dense.setAttribute("aria-pressed", String(view.dense));
  };
  const follow = button("● follow", "Go along with the run", () => setFollowing(view, !view.following));
  const showFollow = () => {
    follow.hidden = view.summary.status !== "running";
    follow.setAttribute("aria-pressed", String(view.following));
  };
  const count = () => (counter.textContent = `${view.step + 1} / ${view.n}`);
  view.parts.push({
    move: () => {
      count();
      showDense();
      showFollow();
    },
    grow: count,
    follow: showFollow,
    choice: showDense,
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
      follow,
    ),
    headline,
    live,
    view.prompt,
    h(
      "div",
      { class: "dfl-tools" },
      choice(view, "Fill", "fill"),
      choice(view, "Rows", "order"),
      choice(view, "Edges", "lines"),
      dense,
      button("?", "Keys (?)", () => view.toggleSheet()),
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

/** A group of buttons of which one is pressed; `name` is the option it sets. */
export function choice(view, label, name) {
  const options = offered(view, name);
  const buttons = options.map(([value, text, title]) =>
    h("button", { type: "button", class: "dfl-button", title, text, onclick: () => setOption(view, name, value) }),
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

/** Turns an option on to its next choice and says what that means. */
export function cycle(view, name) {
  const [value, , meaning] = nextOption(view, name);
  setOption(view, name, value);
  tell(view, meaning);
}

/** The field that asks for a step. */
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

export function askStep(view) {
  view.prompt.open(`Go to step (1–${view.n})`, (text) => {
    const step = Number.parseInt(text, 10);
    if (step >= 1 && step <= view.n) go(view, step - 1);
    else tell(view, `There is no step ${text}; steps are 1 to ${view.n}.`);
    return step >= 1 && step <= view.n;
  });
}

export function buildLegend(view) {
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
    h("button", {
      type: "button",
      class: "dfl-button dfl-tour-start",
      text: "Take the 6-step tour",
      onclick: () => startTour(view),
    }),
  );
}
