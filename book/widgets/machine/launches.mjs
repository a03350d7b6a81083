// The tensors of a launch that labkernels.widgets.launches planned; the random ones are drawn here.
import { decode, encode, from_base64 } from "./formats.mjs";
import { ROLES, paged } from "./own.mjs";
import { Pcg64 } from "./random.mjs";

/**
 * @typedef {import("./formats.mjs").Format} Format
 * @typedef {{dtype: Format, out_dtype: Format, q_lens: number[], kv_lens: number[], q_heads:
 *   number,
 *   kv_heads: number, head_dim: number, head_dim_v: number, page_size: number, causal: boolean,
 *   scale: number}} Attention
 * @typedef {{name: string, bytes: number, written: boolean, drawn?: string, columns?: number,
 *   filled?: number, data?: string}} PlannedTensor
 * @typedef {import("./machine.mjs").Launch & {tensors: PlannedTensor[], attention: Attention}} Plan
 */

export const KINDS = ["normal", "peaky", "integers"];
export const OWN = "own"; // numbers that the reader gives
const PEAKY = 6; // times q, as in labkernels.kernels.decode.inputs
const LARGEST_INTEGER = 4;

/**
 * The tensors of a launch: q, k and v are drawn in this order, then the pages.
 * @param {Plan} plan
 * @param {number} seed
 * @param {string} kind  one of KINDS, or OWN
 * @param {import("./own.mjs").Own} [own]
 */
export function tensors_of(plan, seed, kind, own) {
  const { dtype, kv_lens, page_size } = plan.attention;
  const bits = new Pcg64(seed);
  const n_of = (/** @type {string} */ role) =>
    (plan.tensors.find((t) => t.drawn === role)?.bytes ?? 0) / (dtype === "fp32" ? 4 : 2);
  /** @type {Record<string, Uint8Array>} */
  const drawn = {};
  if (!own) for (const role of ROLES) drawn[role] = encode(dtype, numbers(bits, n_of(role), kind));
  if (kind === "peaky")
    drawn.q = encode(
      dtype,
      decode(dtype, drawn.q).map((x) => PEAKY * x),
    );
  const columns = plan.tensors.find((t) => t.columns !== undefined)?.columns;
  const table = columns === undefined ? null : page_table(bits, kv_lens, page_size, columns);
  if (own)
    for (const role of ROLES)
      drawn[role] = encode(
        dtype,
        table === null || role === "q"
          ? own[role]
          : paged(own[role], table, plan.attention, n_of(role)),
      );
  return plan.tensors.map(({ name, bytes, written, drawn: role, columns, filled, data }) => ({
    name,
    written,
    bytes:
      role !== undefined
        ? drawn[role]
        : columns !== undefined && table !== null
          ? new Uint8Array(table.buffer)
          : data !== undefined
            ? from_base64(data)
            : new Uint8Array(bytes).fill(filled ?? 0),
  }));
}

/** @param {Pcg64} bits @param {number} n @param {string} kind */
function numbers(bits, n, kind) {
  if (!KINDS.includes(kind)) throw new Error(`kind is ${kind}; allowed: ${KINDS.join(", ")}`);
  if (kind !== "integers") return bits.normal(n);
  const count = BigInt(2 * LARGEST_INTEGER + 1);
  return Float32Array.from({ length: n }, () => Number(bits.next() % count) - LARGEST_INTEGER);
}

/**
 * @param {Pcg64} bits
 * @param {number[]} kv_lens
 * @param {number} page_size
 * @param {number} columns
 */
function page_table(bits, kv_lens, page_size, columns) {
  const pages = kv_lens.map((n) => Math.ceil(n / page_size));
  const order = bits.order(pages.reduce((a, b) => a + b, 0)),
    table = new Int32Array(pages.length * columns);
  let at = 0;
  pages.forEach((n, row) => {
    for (let i = 0; i < n; ++i) table[row * columns + i] = order[at++];
  });
  return table;
}
