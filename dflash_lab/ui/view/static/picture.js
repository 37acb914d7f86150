/* The grid as a picture of its own: one SVG text with everything in it, or that drawn as a PNG. */

import { css, inkOn, ramp, range, shorten } from "./numbers.js";
import { CAUSE_WORDS, cellLook, columnBounds, GLYPH, visible } from "./step.js";
import { h, later } from "./dom.js";
import { tell } from "./moves.js";
import { whatIf } from "./whatif.js";

const CELL = { width: 92, height: 22, gap: 4 };
const LEFT = 150;
const TOP = 62;
const LETTERS = 8;
const FONT = 'ui-monospace, "DejaVu Sans Mono", "Noto Sans Mono", monospace';
const LINES = {
  accepted: ["accepted", 3, ""],
  mismatch: ["rejected", 3, "5 3"],
  unchecked: ["muted", 1.5, "1.5 3"],
  cut: ["muted", 1.5, "1.5 3"],
};

/** SVG text for an XML document: no character in it can end the text or be refused by a reader. */
export function escapeXml(text) {
  // XML has no way to write most control characters, nor halves of a surrogate pair.
  const writable = text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd").toWellFormed();
  return writable.replace(/[<>&"']/g, (char) => `&#${char.charCodeAt(0)};`);
}

/** The step that is shown, as the text of an SVG file. */
export function gridSvg(view) {
  const { current: step, palette } = view;
  const column = (j) => LEFT + j * (CELL.width + CELL.gap);
  const row = (i) => TOP + i * (CELL.height + CELL.gap);
  const size = { width: column(step.depth) + CELL.width + 8, height: row(step.width) + 52 };
  const at = { column, row, rowOf: (j, r) => view.grid.orders[j].indexOf(r) };
  const parts = [
    label(LEFT, 18, headline(view), palette.text, "start", 13),
    label(LEFT - 24, row(step.width) + 22, "target", palette.muted, "end"),
    ...range(step.width).map((i) => label(20, row(i) + 15, String(i + 1), palette.muted, "end")),
    box(34, TOP, CELL.width, palette.surface, palette.line),
    label(40, TOP + 15, shorten(visible(step.token(step.anchor)), LETTERS), palette.text),
    ...range(step.depth).flatMap((j) => drawColumn(view, step, j, at)),
    pathLine(step, step.path, at, (j) => LINES[step.states[j]], palette),
    view.picked ? whatIfLine(view, step, at) : "",
    step.full ? bonus(step, column(step.depth), row(step.width), palette) : "",
  ];
  const font = `font-family='${FONT}' font-size="11"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${size.width}" height="${size.height}" viewBox="0 0 ${size.width} ${size.height}" ${font}>
<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V7" stroke="${palette.muted}" stroke-opacity="0.35"/></pattern></defs>
<rect width="100%" height="100%" fill="${palette.surface}"/>
${parts.join("\n")}
</svg>
`;
}

function headline({ summary, current: step }) {
  return `${summary.name} · step ${step.i + 1} of ${summary.n} · ${step.acc} of ${step.depth} accepted · ${CAUSE_WORDS[step.cause]}`;
}

function drawColumn(view, step, j, { column, row, rowOf }) {
  const { palette, fill } = view;
  const state = step.states[j];
  const bounds = fill === "p" ? null : columnBounds(step, fill, j);
  const x = column(j);
  const colour = { accepted: palette.accepted, mismatch: palette.rejected }[state] ?? palette.muted;
  const parts = [label(x + CELL.width / 2, TOP - 12, `${j + 1} ${GLYPH[state]}`, colour, "middle", 12)];
  for (let r = 0; r < step.width; r++) parts.push(drawCell(view, step, j, r, x, row(rowOf(j, r)), bounds));
  const bottom = row(step.width) + 6;
  const height = step.width * (CELL.height + CELL.gap);
  if (state === "unchecked" || state === "cut")
    parts.push(`<rect x="${x}" y="${TOP}" width="${CELL.width}" height="${height}" fill="url(#hatch)"/>`);
  if (state === "accepted") parts.push(label(x + CELL.width / 2, bottom + 16, "= path", palette.muted, "middle"));
  if (state === "mismatch") parts.push(correction(step, x, bottom, palette));
  return parts;
}

function drawCell(view, step, j, r, x, y, bounds) {
  const { palette } = view;
  const state = step.states[j];
  const look = cellLook(step, view.fill, j, r, bounds);
  const fill = look.level === null ? null : ramp(palette, look.level);
  const ink = fill ? inkOn(fill) : palette.text;
  const [name, width, dash] = r === step.path[j] ? LINES[state] : ["line", 0.5, ""];
  const ring = state === "mismatch" && r + 1 === step.wantedRank;
  return [
    box(x, y, CELL.width, fill ? css(fill) : palette.surface, palette[name], width, dash),
    ring ? box(x + 2, y + 2, CELL.width - 4, "none", palette.ring, 3, "", CELL.height - 4) : "",
    label(x + 6, y + 15, shorten(visible(step.at(j, r)), LETTERS), ink),
    label(x + CELL.width - 5, y + 15, look.text, ink, "end", 9.5),
  ].join("");
}

function correction(step, x, y, palette) {
  const rank = step.hasUnary ? (step.bonusRank ? `rank ${step.bonusRank}` : "not in list") : "";
  return [
    box(x, y, CELL.width, palette.correction, palette.text, 1, "", 34),
    label(x + 5, y + 14, `◆ ${shorten(visible(step.token(step.bonus)), LETTERS)}`, "#111111"),
    label(x + 5, y + 28, rank, "#111111", "start", 9.5),
  ].join("");
}

function bonus(step, x, y, palette) {
  const ink = inkOn([1, 3, 5].map((i) => parseInt(palette.bonus.slice(i, i + 2), 16)));
  return [
    box(x, y + 6, CELL.width, palette.bonus, palette.bonus, 1, "", 34),
    label(x + 5, y + 27, `★ ${shorten(visible(step.token(step.bonus)), LETTERS)}`, ink),
  ].join("");
}

function whatIfLine(view, step, at) {
  const { path } = whatIf(step, view.picked.j, view.picked.r);
  return pathLine(step, path, at, (j) => (j < view.picked.j ? null : ["bonus", 2, "9 3 2 3"]), view.palette);
}

function pathLine(step, path, { column, row, rowOf }, styleOf, palette) {
  const middle = (j) => (j < 0 ? TOP : row(rowOf(j, path[j]))) + CELL.height / 2;
  const right = (j) => (j < 0 ? 34 : column(j)) + CELL.width;
  return range(step.depth)
    .filter((j) => styleOf(j) && path[j] >= 0 && (j === 0 || path[j - 1] >= 0))
    .map((j) => {
      const [name, width, dash] = styleOf(j);
      const [x, y, X, Y] = [right(j - 1), middle(j - 1), column(j), middle(j)];
      const d = `M${x} ${y}C${X} ${y} ${x} ${Y} ${X} ${Y}`;
      return `<path d="${d}" fill="none" stroke="${palette[name]}" stroke-width="${width}" stroke-dasharray="${dash}"/>`;
    })
    .join("");
}

function box(x, y, width, fill, stroke, strokeWidth = 1, dash = "", height = CELL.height) {
  return `<rect x="${x}" y="${y}" width="${width}" height="${height}" rx="2" fill="${fill}" stroke="${stroke}" stroke-width="${strokeWidth}" stroke-dasharray="${dash}"/>`;
}

function label(x, y, text, fill, anchor = "start", size = 11) {
  return `<text x="${x}" y="${y}" fill="${fill}" text-anchor="${anchor}" font-size="${size}" xml:space="preserve">${escapeXml(text)}</text>`;
}

/** The step that is shown as a file, of kind "svg" or "png". */
export async function gridPicture(view, kind) {
  const text = gridSvg(view);
  if (kind === "svg") return new Blob([text], { type: "image/svg+xml" });
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = h("canvas", { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Hands the picture to the browser's downloads. */
export async function savePicture(view, kind) {
  if (!view.current?.depth) return tell(view, "This step has no candidate grid to save.");
  const url = URL.createObjectURL(await gridPicture(view, kind));
  h("a", { href: url, download: `step-${view.current.i}.${kind}` }).click();
  return later(view, "revoke", 10_000, () => URL.revokeObjectURL(url));
}

/** Save buttons, for hosts that have no menu of their own too. */
export function buildPictures(view) {
  const button = (kind) =>
    h("button", {
      type: "button",
      class: "dfl-button",
      text: kind.toUpperCase(),
      "aria-label": `Save the grid as ${kind.toUpperCase()}`,
      onclick: () => savePicture(view, kind),
    });
  return h("div", { class: "dfl-panel-part dfl-pictures" }, h("h3", { text: "Picture" }), button("svg"), button("png"));
}
