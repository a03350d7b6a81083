// Which byte comes next, and two texts that are written side by side.
import { Pcg64 } from "../machine/random.mjs";
import { Model, Text } from "./model.mjs";

/**
 * @typedef {{byte: number, shares: Float64Array}} Next  shares: the probability of each byte
 * @typedef {{on: Next, off: Next, draw: number | null}} Both  draw: a number below 1
 */

/** Probabilities. @param {Float64Array} logits */
export function shares_of(logits) {
  const most = Math.max(...logits),
    weights = logits.map((x) => Math.exp(x - most)),
    sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((x) => x / sum);
}

/** The most likely byte, or the one that a number below 1 draws. @param {Float64Array} shares */
export function chosen(shares, /** @type {number | null} */ draw) {
  if (draw === null) return shares.indexOf(Math.max(...shares));
  let sum = 0;
  const found = shares.findIndex((share) => (sum += share) > draw);
  return found < 0 ? shares.length - 1 : found;
}

/**
 * Lets two texts grow from one prompt until the model's context is full, byte by byte, from the
 * same draws.
 * @param {import("./model.mjs").Asset} asset @param {Uint8Array} prompt
 * @param {number | null} seed  of the draws; null for the most likely byte
 * @returns {AsyncGenerator<Both>}
 */
export async function* written(asset, prompt, seed) {
  const model = new Model(asset),
    draws = seed === null ? null : new Pcg64(seed);
  const texts = [await Text.begin(model, asset.ways.on), await Text.begin(model, asset.ways.off)];
  const logits = texts.map((text) => [...prompt].map((byte) => text.read(byte)).at(-1));
  for (let n = prompt.length; n < asset.size.context; ++n) {
    const draw = draws === null ? null : Number(draws.next() >> 11n) * 2 ** -53;
    const [on, off] = logits.map((given) => {
      const shares = shares_of(/** @type {Float64Array} */ (given));
      return { byte: chosen(shares, draw), shares };
    });
    yield { on, off, draw };
    [on, off].forEach(({ byte }, i) => (logits[i] = texts[i].read(byte)));
  }
}
