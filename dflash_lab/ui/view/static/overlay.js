/* Lines over the grid: the path, and the edges asked for. */

import { css, diverging, range, total } from "./numbers.js";
import { strongest } from "./step.js";
import { cellOf, svg } from "./dom.js";
import { whatIf } from "./whatif.js";

/** The path, and the edges asked for, over the cells. */
export function drawOverlay(grid) {
  const { view, overlay, marks, wrap } = grid;
  const step = view.current;
  const origin = wrap.getBoundingClientRect();
  if (!step?.depth || !origin.width) return marks.replaceChildren();
  overlay.setAttribute("width", origin.width);
  overlay.setAttribute("height", origin.height);
  const box = (j, r) => {
    const cell = j < 0 ? grid.anchor : cellOf(grid, j, r);
    if (!cell) return null;
    const rect = cell.firstChild.getBoundingClientRect();
    return {
      left: rect.left - origin.left,
      right: rect.right - origin.left,
      y: (rect.top + rect.bottom) / 2 - origin.top,
    };
  };
  const lines = hatches(view, step, grid, origin);
  if (view.lines === "all" && step.edges) lines.push(...allEdges(view, step, box));
  if (view.lines !== "path" && step.edges) lines.push(...focusEdges(view, step, box));
  lines.push(...pathLines(step.path, box, (j) => `dfl-path dfl-path-${step.states[j]}`));
  if (view.picked) {
    const { path } = whatIf(step, view.picked.j, view.picked.r);
    lines.push(...pathLines(path, box, () => "dfl-path dfl-path-whatif", view.picked.j));
  }
  marks.replaceChildren(...lines);
}

/** One pattern for all columns that were not used: a background per cell would be drawn a hundred times a step. */
export function hatchPattern(view) {
  const size = { width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  const pattern = svg("pattern", { id: `${view.uid}-hatch`, ...size });
  pattern.append(svg("path", { class: "dfl-hatchline", d: "M4 0V8" }));
  return pattern;
}

function hatches(view, step, { cells }, origin) {
  const unused = range(step.depth).filter((j) => step.states[j] === "unchecked" || step.states[j] === "cut");
  return unused.map((j) => {
    const top = cells[j][0].getBoundingClientRect();
    const bottom = cells[j].at(-1).getBoundingClientRect();
    return svg("rect", {
      x: top.left - origin.left,
      y: top.top - origin.top,
      width: top.width,
      height: bottom.bottom - top.top,
      fill: `url(#${view.uid}-hatch)`,
    });
  });
}

function pathLines(path, box, classOf, first = 0) {
  return range(path.length - first).flatMap((i) => {
    const j = first + i;
    const [a, b] = [box(j - 1, path[j - 1]), box(j, path[j])];
    if (!a || !b) return [];
    const d = `M${a.right} ${a.y}C${b.left} ${a.y} ${a.right} ${b.y} ${b.left} ${b.y}`;
    return [svg("path", { class: classOf(j), d })];
  });
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
