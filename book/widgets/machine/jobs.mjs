// One press of "run": the launch, its output, the truth and the checksum. It runs in a worker, or
// block by block in the page.
import { truth } from "./attention.mjs";
import { decode, encode, from_base64, sha256 } from "./formats.mjs";
import { tensors_of } from "./launches.mjs";
import { KernelError, Machine } from "./machine.mjs";
import { Recorder } from "./trace.mjs";

/**
 * @typedef {import("./launches.mjs").Plan & {rounding: import("./attention.mjs").Rounding,
 *   sha256: string | null, outputs?: string[], right?: string}} Case
 *   outputs: "out" and "lse2", or others; right: their numbers where nothing rounds
 * @typedef {{wasm: string | Uint8Array, ex2: string, places: Record<string, string>}} Module
 * @typedef {{module: Module, plan: Case, seed: number, kind: string, off?: number,
 *   own?: import("./own.mjs").Own,
 *   traced?: boolean, whole?: boolean}} Job  off: the part that is broken; traced: block 0 is
 *   recorded; whole: every element of the output is returned
 * @typedef {{error: string | null, milliseconds: number, blocks: number, sum: string,
 *   heads: Group[], requests: Group[], first: number[], true_first: number[],
 *   events: import("./trace.mjs").Event[], elements: Elements | null}} Result
 * @typedef {{found: Float64Array, right: Float64Array, lse2: Float64Array}} Elements
 * @typedef {{name: number, error: number, bound: number, ratio: number, inside: boolean}} Group
 */

const SHOWN = 8; // last elements of the output

/** @type {{wasm: string | Uint8Array, machine: Promise<Machine>} | null} */
let kept = null;

/** @param {Module} module */
function machine_of({ wasm, ex2, places }) {
  if (kept?.wasm !== wasm) {
    const bytes = /** @type {BufferSource} */ (typeof wasm === "string" ? from_base64(wasm) : wasm);
    kept = { wasm, machine: Machine.load(bytes, from_base64(ex2), places) };
  }
  return kept.machine;
}

/**
 * @param {Job} job
 * @param {(done: number, blocks: number) => Promise<void>} progress  after each block
 * @returns {Promise<Result>}
 */
export async function run(job, progress) {
  const { plan, seed, kind, own } = job,
    a = plan.attention;
  const tensors = tensors_of(plan, seed, kind, own);
  const machine = await machine_of(job.module),
    launch = machine.prepare(plan, tensors);
  if (job.off !== undefined) machine.exports.lab_take_out(job.off);
  const recorder = new Recorder(machine, plan);
  let milliseconds = 0,
    error = null;
  try {
    for (let i = 0; i < launch.blocks; ++i) {
      const began = performance.now();
      machine.on_word = job.traced && i === 0 ? recorder.on_word : () => {};
      launch.run_block(i);
      milliseconds += performance.now() - began;
      await progress(i + 1, launch.blocks);
    }
  } catch (reason) {
    kept = null;
    if (!(reason instanceof KernelError) && !(reason instanceof WebAssembly.RuntimeError))
      throw reason;
    error = reason.message;
    if (job.traced) recorder.end();
  }
  const empty = {
    error,
    milliseconds,
    blocks: launch.blocks,
    sum: "",
    heads: [],
    requests: [],
    first: [],
    true_first: [],
    events: recorder.events,
    elements: null,
  };
  if (error !== null) return empty;
  const bytes = outputs_of(launch, plan);
  kept = null; // its memory grows with every launch
  const found = decode(a.out_dtype, bytes.out);
  const of = (/** @type {string} */ role) =>
    decode(
      a.dtype,
      /** @type {any} */ (tensors[plan.tensors.findIndex((t) => t.drawn === role)]).bytes,
    );
  const table = tensors.find((t) => t.name === "page_table");
  const given = () => ({
    q: of("q"),
    k: of("k"),
    v: of("v"),
    table: table ? new Int32Array(table.bytes.slice().buffer) : null,
  });
  const right = plan.right
      ? { out: decode(a.out_dtype, from_base64(plan.right)), bound: new Float64Array(found.length) }
      : truth(a, plan.rounding, given()),
    width = a.head_dim_v;
  const request_of = a.q_lens.flatMap((n, request) => Array(n).fill(request));
  return {
    ...empty,
    sum: sha256([bytes.out, bytes.lse2]),
    heads: grouped(found, right, a.q_heads, (row) => row % a.q_heads, width),
    requests: grouped(
      found,
      right,
      a.q_lens.length,
      (row) => request_of[Math.floor(row / a.q_heads)],
      width,
    ),
    first: Array.from(found.subarray(-SHOWN)),
    true_first: Array.from(right.out.subarray(-SHOWN)),
    elements: job.whole
      ? { found, right: right.out, lse2: decode("fp32", bytes.lse2) }
      : null,
  };
}

/**
 * The results of a launch: out and lse2, or states from which the page computes them, or one
 * tensor.
 * @param {import("./machine.mjs").Prepared} launch @param {Case} plan
 */
function outputs_of(launch, { outputs = ["out", "lse2"], attention }) {
  const [out, lse2 = new Uint8Array(), m] = outputs.map((name) => launch.read(name));
  if (!m) return { out, lse2 };
  const l = decode("fp32", lse2),
    row = (/** @type {number} */ i) => Math.floor(i / attention.head_dim_v);
  return {
    out: encode(attention.out_dtype, decode("fp32", out).map((o, i) => o / l[row(i)])),
    lse2: encode("fp32", decode("fp32", m).map((x, i) => x + Math.log2(l[i]))),
  };
}

/**
 * The largest error of each group of rows, and the largest ratio of an error to its bound.
 * @param {Float64Array} found @param {import("./attention.mjs").Truth} right @param {number} n
 * @param {(row: number) => number} group_of @param {number} width
 */
function grouped(found, right, n, group_of, width) {
  const groups = Array.from({ length: n }, (_, name) => ({
    name,
    error: 0,
    bound: 0,
    ratio: 0,
    inside: true,
  }));
  found.forEach((x, i) => {
    const group = groups[group_of(Math.floor(i / width))];
    const error = Math.abs(x - right.out[i]),
      bound = right.bound[i];
    group.error = Math.max(group.error, error);
    group.bound = Math.max(group.bound, bound);
    if (error > 0) group.ratio = Math.max(group.ratio, error / bound);
    group.inside = group.inside && error <= bound; // a NaN is outside
  });
  return groups;
}
