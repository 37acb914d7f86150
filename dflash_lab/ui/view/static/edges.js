/* The edge map. */

import { clamp, css, diverging, inkOn, MINUS, range, score, shorten } from "./numbers.js";
import { strongest, visible } from "./step.js";
import { bdi, h, later, pen, triangle } from "./dom.js";
import { focusCell } from "./moves.js";

const REST = 80;

export function buildEdges(view) {
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
  // The grid goes first: while one scrubs, the maps wait until it rests.
  view.parts.push({
    step: () => later(view, "edges", REST, update),
    repaint: update,
    cell: (moved) => view.current.edges && paintPair(edges, moved),
  });
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
  if (Number.isFinite(share)) return triangle(c, x - 3, share > 0 ? y - 4 : y - 1, colour, share > 0 ? 3 : -3);
  c.fillStyle = colour;
  c.font = "8px sans-serif";
  c.textAlign = "right";
  return c.fillText(Number.isNaN(share) ? "·" : share < 0 ? `${MINUS}∞` : "∞", x, y);
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
