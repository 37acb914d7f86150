/* Nodes, frames, sizes and theme. */

import { readPalette } from "./numbers.js";
import { visible } from "./step.js";

/** An element with attributes ("class", "text", on… handlers) and children; text only ever as text. */
export function h(tag, attributes = {}, ...children) {
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

export function svg(tag, attributes = {}) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** A canvas context of `width` x `height` CSS pixels, cleared. */
export function pen(canvas, width, height) {
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

export const bdi = (token, cls) => h("bdi", { class: cls, text: visible(token) });

export function listen(view, target, type, handler) {
  target.addEventListener(type, handler);
  view.undo.push(() => target.removeEventListener(type, handler));
}

export function later(view, name, delay, action) {
  clearTimeout(view.timers[name]);
  view.timers[name] = setTimeout(() => {
    view.timers[name] = 0;
    action();
  }, delay);
}

/** Runs `action` once in the next frame, with all others that read sizes: one layout per step instead of five. */
export function nextFrame(view, name, action) {
  if (!view.frame.size) {
    requestAnimationFrame(() => {
      const actions = [...view.frame.values()];
      view.frame.clear();
      actions.forEach((run) => run());
    });
  }
  view.frame.set(name, action);
}

export async function idle(view) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 10));
    await view.ahead;
    if (!view.loading && !view.timers.select && !view.timers.edges) break;
  }
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
}

function pageIsDark() {
  const { body } = document;
  const names = body.classList;
  if (names.contains("dark") || names.contains("vscode-dark") || names.contains("vscode-high-contrast")) return true;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (names.contains("light") || names.contains("vscode-light")) return false;
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

export function followTheme(view) {
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
export function watchSize(view) {
  const observer = new ResizeObserver(() => {
    if (!view.root.clientWidth) return;
    view.palette = readPalette(view.root);
    view.parts.forEach((part) => part.repaint?.());
  });
  observer.observe(view.root);
  view.undo.push(() => observer.disconnect());
}

/** Keys belong to the widget while the focus is in it: in a notebook a bare `b` or `d d` would edit cells. */
export function keepKeys(el) {
  el.dataset.lmSuppressShortcuts = "true";
  el.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
  });
}

export function triangle(c, x, y, colour, size = 3) {
  c.fillStyle = colour;
  c.beginPath();
  c.moveTo(x, y);
  c.lineTo(x + size, y + size);
  c.lineTo(x - size, y + size);
  c.fill();
}

/** The grid's cell of candidate `r` at position `j`, wherever its row is. */
export const cellOf = ({ cells, orders }, j, r) => cells[j]?.[orders[j].indexOf(r)];

/** Leaves a node alone that already reads so: most cells of a grid change, most of their parts do not. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Scrolls `box` itself, never the page, until `node` is clear of its sticky edges. */
export function reveal(box, node, left = 40) {
  const outer = box.getBoundingClientRect();
  const inner = node.getBoundingClientRect();
  if (inner.left < outer.left + left) box.scrollLeft -= outer.left + left - inner.left;
  if (inner.right > outer.right) box.scrollLeft += inner.right - outer.right + 8;
  if (inner.top < outer.top + 24) box.scrollTop -= outer.top + 24 - inner.top;
  if (inner.bottom > outer.bottom - 40) box.scrollTop += inner.bottom - outer.bottom + 40;
}
