/* Numbers, buffers and colours: pure functions. */

export const PHASES = ["draft", "select", "verify", "commit"];
export const MINUS = "\u2212";

/** The value of an IEEE 754 half. */
export function halfToFloat(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

/** A wire buffer as Float32Array, or null. */
export function decodeBuffer(buffer) {
  if (!buffer) return null;
  const bytes = Uint8Array.from(atob(buffer.d), (char) => char.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const half = buffer.q === "f16";
  const values = new Float32Array(bytes.length / (half ? 2 : 4));
  for (let i = 0; i < values.length; i++) {
    values[i] = half ? halfToFloat(view.getUint16(2 * i, true)) : view.getFloat32(4 * i, true);
  }
  return values;
}

/** A probability in per cent, at most three characters. */
export function percent(p) {
  if (!Number.isFinite(p)) return "·";
  const value = 100 * p;
  if (value < 0.1) return "<.1";
  return value < 9.95 ? value.toFixed(1).replace(/^0/, "") : value.toFixed(0);
}

/** A score with a real minus sign; "·" where it was not recorded, "−∞" where it is masked. */
export function score(value, digits = 2, signed = false) {
  if (value === null || value === undefined || Number.isNaN(value)) return "·";
  if (!Number.isFinite(value)) return value < 0 ? `${MINUS}∞` : "∞";
  const text = Math.abs(value).toFixed(digits);
  return (value < 0 && Number(text) !== 0 ? MINUS : signed ? "+" : "") + text;
}

export const milliseconds = (value) => (value === null ? "·" : value < 9.95 ? value.toFixed(1) : value.toFixed(0));
export const probability = (p) => (p < 0.001 ? p.toExponential(1).replace("-", MINUS) : p.toPrecision(2));
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
export const total = (times) => times.reduce((sum, value) => sum + (value ?? 0), 0);
export const range = (n) => Array.from({ length: n }, (_, i) => i);
const parseColour = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const mix = (a, b, t) => a.map((value, i) => Math.round(value + (b[i] - value) * t));
export const css = (rgb) => `rgb(${rgb.join(",")})`;

function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const c = value / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white, whichever reads better on `rgb`: never under 4.5 to 1. */
export const inkOn = (rgb) => (luminance(rgb) > 0.179 ? "#000" : "#fff");

/** Colour of a score in 0..1 on the single-hue ramp. */
export const ramp = (palette, t) => mix(palette.ramp0, palette.ramp1, clamp(t, 0, 1));

/** Colour of a signed share in -1..1 on the diverging scale. */
export function diverging(palette, t) {
  const [middle, end] = t < 0 ? palette.negative : palette.positive;
  const size = clamp(Math.abs(t), 0, 1);
  return size < 0.5 ? mix(palette.neutral, middle, 2 * size) : mix(middle, end, 2 * size - 1);
}

export function readPalette(root) {
  const style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue(`--dfl-${name}`).trim() || "#888888";
  const rgb = (name) => parseColour(colour(name));
  const names = ["surface", "text", "muted", "line", "accepted", "rejected", "correction", "bonus", "bar", "ring"];
  return {
    ...Object.fromEntries(names.map((name) => [name, colour(name)])),
    phases: PHASES.map((name) => colour(`phase-${name}`)),
    ramp0: rgb("ramp0"),
    ramp1: rgb("ramp1"),
    neutral: rgb("neutral"),
    negative: [rgb("negative1"), rgb("negative2")],
    positive: [rgb("positive1"), rgb("positive2")],
  };
}

const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** At most `length` user-perceived characters. */
export function shorten(text, length) {
  const parts = [];
  for (const { segment } of segmenter.segment(text)) {
    if (parts.length === length) return `${parts.slice(0, -1).join("")}…`;
    parts.push(segment);
  }
  return text;
}
