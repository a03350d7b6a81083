// The shipped language model: bytes in, logits of the next byte out. It computes what
// labkernels.experiments.training.model does under autocast in bf16, but with sums in float64, so
// that their order changes no bit. Attention is a kernel of the lab, with its own bits.
import { from_base64, from_bf16, to_bf16 } from "../machine/formats.mjs";
import { Machine } from "../machine/machine.mjs";

/**
 * @typedef {{layers: number, q_heads: number, kv_heads: number, head_dim: number, context: number,
 *   hidden: number}} Size
 * @typedef {import("../machine/machine.mjs").Launch & {tensors:
 *   import("../machine/launches.mjs").PlannedTensor[]}} Plan
 * @typedef {{kernel: string, wasm: string, ex2: string, plan: Plan}} Decode
 * @typedef {{size: Size, eps: number, weights: Record<string, string>,
 *   ways: Record<string, Decode>}} Asset
 * @typedef {Float64Array} Numbers
 */

/** Rounds to bf16. @param {number} x */
const rounded = (x) => from_bf16(to_bf16(x));

/** A matrix in bf16, whose rows are as long as what it is multiplied with. */
class Matrix {
  /** @param {Int8Array} codes @param {Float32Array} scales  of the rows */
  constructor(codes, scales) {
    this.columns = codes.length / scales.length;
    this.exact = Float32Array.from(codes, (x, i) => x * scales[Math.floor(i / this.columns)]);
    this.numbers = this.exact.map(rounded);
  }

  /** A row in fp32. @param {number} i */
  row(i) {
    return Float64Array.from(this.exact.subarray(i * this.columns, (i + 1) * this.columns));
  }

  /** The product with x in bf16, rounded to bf16. @param {Numbers} x @returns {Numbers} */
  times(x) {
    const { columns, numbers } = this,
      given = x.map(rounded),
      made = new Float64Array(numbers.length / columns);
    for (let i = 0, at = 0; i < made.length; ++i) {
      let sum = 0;
      for (let j = 0; j < columns; ++j) sum += numbers[at++] * given[j];
      made[i] = rounded(sum);
    }
    return made;
  }
}

/** The weights, which all texts share. */
export class Model {
  /** @param {Asset} asset */
  constructor({ size, eps, weights }) {
    this.size = size;
    this.eps = eps;
    const bytes = (/** @type {string} */ name) => from_base64(weights[name]).buffer,
      floats = (/** @type {string} */ name) => new Float32Array(bytes(name)),
      matrix = (/** @type {string} */ name) =>
        new Matrix(new Int8Array(bytes(`codes.${name}.weight`)), floats(`scale.${name}.weight`));
    this.embedding = matrix("embedding");
    this.norm = floats("norm");
    this.turns = floats("turns"); // [place, pair of channels, cosine and sine]
    this.layers = Array.from({ length: size.layers }, (_, i) => ({
      ...{ qkv: matrix(`layers.${i}.qkv`), out: matrix(`layers.${i}.out`) },
      ...{ up: matrix(`layers.${i}.up`), down: matrix(`layers.${i}.down`) },
      norms: [floats(`layers.${i}.norms.0`), floats(`layers.${i}.norms.1`)],
    }));
  }

  /** RMSNorm of x. @param {Numbers} x @param {Float32Array} weight */
  normed(x, weight) {
    const mean = x.reduce((sum, value) => sum + value * value, 0) / x.length,
      by = 1 / Math.sqrt(mean + this.eps);
    return x.map((value, i) => value * by * weight[i]);
  }

  /**
   * The heads in x, with each pair of channels turned by its angle at a place.
   * @param {Numbers} x @param {number} place
   */
  turned(x, place) {
    const dim = this.size.head_dim,
      made = x.slice();
    for (let i = 0; i < x.length; i += 2) {
      const at = place * dim + (i % dim),
        [cosine, sine] = [this.turns[at], this.turns[at + 1]];
      made[i] = rounded(x[i] * cosine - x[i + 1] * sine);
      made[i + 1] = rounded(x[i] * sine + x[i + 1] * cosine);
    }
    return made;
  }
}

/** A text that grows, with its keys and values in the memory of a decode's machine. */
export class Text {
  /** @param {Model} model @param {Decode} decode */
  static async begin(model, decode) {
    const wasm = /** @type {BufferSource} */ (from_base64(decode.wasm));
    return new Text(model, await Machine.load(wasm, from_base64(decode.ex2)), decode.plan);
  }

  /** @param {Model} model @param {Machine} machine @param {Plan} plan */
  constructor(model, machine, plan) {
    this.model = model;
    this.machine = machine;
    this.length = 0;
    const tensors = plan.tensors.map(({ name, written, bytes, columns }) => {
      const pages = Int32Array.from({ length: columns ?? 0 }, (_, i) => i);
      return {
        ...{ name, written },
        bytes: columns ? new Uint8Array(pages.buffer) : new Uint8Array(bytes),
      };
    });
    this.launches = model.layers.map(() => machine.prepare(plan, tensors));
  }

  /** Reads a byte; returns the logits of the next one. @param {number} byte */
  read(byte) {
    const { model } = this,
      place = this.length++;
    let x = model.embedding.row(byte);
    const add = (/** @type {Numbers} */ more) => (x = x.map((a, i) => Math.fround(a + more[i])));
    model.layers.forEach((layer, i) => {
      const rows = layer.qkv.times(model.normed(x, layer.norms[0]));
      add(layer.out.times(this.attended(i, rows, place)));
      const both = layer.up.times(model.normed(x, layer.norms[1])),
        value = both.subarray(both.length / 2),
        gate = both.subarray(0, both.length / 2).map((g) => rounded(g / (1 + Math.exp(-g))));
      add(layer.down.times(gate.map((g, j) => g * value[j])));
    });
    return model.embedding.times(model.normed(x, model.norm));
  }

  /**
   * Keeps the keys and values of a place, and runs the kernel.
   * @param {number} layer @param {Numbers} rows  of q, k and v @param {number} place
   */
  attended(layer, rows, place) {
    const { q_heads, kv_heads, head_dim } = this.model.size,
      n_q = q_heads * head_dim,
      n_kv = kv_heads * head_dim,
      launch = this.launches[layer];
    const put = (/** @type {string} */ name, /** @type {Numbers} */ from, first = 0) => {
      const at = launch.at[name] + 2 * first; // bytes
      new Uint16Array(this.machine.memory.buffer, at, from.length).set(Array.from(from, to_bf16));
    };
    put("q", this.model.turned(rows.subarray(0, n_q), place));
    put("k_pool", this.model.turned(rows.subarray(n_q, n_q + n_kv), place), place * n_kv);
    put("v_pool", rows.subarray(n_q + n_kv), place * n_kv);
    new Int32Array(this.machine.memory.buffer, launch.at.kv_len, 1)[0] = place + 1;
    launch.again();
    launch.run();
    return Float64Array.from(new Uint16Array(launch.read("out").buffer), from_bf16);
  }
}
