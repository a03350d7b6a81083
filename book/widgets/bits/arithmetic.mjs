// Rounding to a number format, and sums of products by a tensor core: the rules of
// labkernels.numerics, with whose results the tests compare these, bit for bit.

/**
 * @typedef {{name: string, bits: number, exponent_bits: number, fraction_bits: number,
 *   has_inf: boolean, emin: number, max: number}} Format
 * @typedef {{fraction_bits: number, chunk: number, lowest_exponent_fp32: number,
 *   out_fraction_bits: number}} Unit  of labkernels.numerics.emulation.tensor_core
 */

const view = new DataView(new ArrayBuffer(8));
const FP32_EMIN = -126;

/** The exponent of the binade of x, at least emin. @param {number} x @param {number} emin */
function exponent_of(x, emin) {
  view.setFloat64(0, x);
  return Math.max(((view.getUint32(0) >>> 20) & 0x7ff) - 1023, emin);
}

/** The spacing of a format at x. @param {number} x @param {Format} format */
export const spacing = (x, format) => 2 ** (exponent_of(x, format.emin) - format.fraction_bits);

/** The nearest number of a format, ties to even. @param {number} x @param {Format} format */
export function round_to(x, format) {
  if (!Number.isFinite(x)) return x;
  const unit = spacing(x, format),
    steps = Math.abs(x) / unit,
    floor = Math.floor(steps),
    rest = steps - floor;
  const up = rest > 0.5 || (rest === 0.5 && floor % 2 === 1);
  const size = (floor + (up ? 1 : 0)) * unit,
    beyond = size > format.max;
  const held = !beyond ? size : format.has_inf ? Infinity : format.max;
  return x < 0 || Object.is(x, -0) ? -held : held;
}

/**
 * The fields of a number that the format holds, in bits.
 * @param {number} x @param {Format} format
 */
export function fields(x, format) {
  const { emin, fraction_bits, exponent_bits } = format,
    size = Math.abs(x);
  const bits = (/** @type {number} */ n, /** @type {number} */ width) =>
    n.toString(2).padStart(width, "0");
  const sign = x < 0 || Object.is(x, -0) ? "1" : "0";
  const top = 2 ** exponent_bits - 1;
  if (size === Infinity)
    return { sign, exponent: bits(top, exponent_bits), fraction: bits(0, fraction_bits) };
  const normal = size >= 2 ** emin,
    exponent = exponent_of(size, emin);
  const steps = size / 2 ** (exponent - fraction_bits);
  return {
    sign,
    exponent: bits(normal ? exponent - emin + 1 : 0, exponent_bits),
    fraction: bits(normal ? steps - 2 ** fraction_bits : steps, fraction_bits),
  };
}

/**
 * The number whose fields these are, in bits; infinity or NaN for those that are none.
 * @param {{sign: string, exponent: string, fraction: string}} bits @param {Format} format
 */
export function number_of({ sign, exponent, fraction }, { emin, fraction_bits, has_inf }) {
  const raw = parseInt(exponent, 2),
    steps = parseInt(fraction, 2),
    full = !exponent.includes("0");
  const size =
    full && has_inf && steps === 0
      ? Infinity
      : full && (has_inf || !fraction.includes("0"))
        ? NaN
        : (raw === 0 ? steps : steps + 2 ** fraction_bits) *
          2 ** (Math.max(raw, 1) + emin - 1 - fraction_bits);
  return sign === "1" ? -size : size;
}

/** Cut toward zero to fp32's exponents. @param {number} x @param {number} fraction_bits */
function cut(x, fraction_bits) {
  if (!(Math.abs(x) < 2 ** 128)) return x < 0 ? -Infinity : x > 0 ? Infinity : x;
  const step = 2 ** (exponent_of(x, FP32_EMIN) - fraction_bits);
  return Math.trunc(x / step) * step + 0; // no negative zero
}

/**
 * One element of a product, added in fp32 by a tensor core: a chunk of K at a time, every product
 * aligned to the largest and cut off.
 * @param {number[]} row  of A, in the format @param {number[]} column  of B, in the format
 * @param {Unit} unit @param {Format} format @param {number} start  the element of C, in fp32
 */
export function tensor_core_dot(row, column, unit, format, start = 0) {
  let sum = start;
  for (let k = 0; k < row.length; k += unit.chunk) {
    const a = row.slice(k, k + unit.chunk),
      products = a.map((x, i) => x * column[k + i]);
    if (!products.every(Number.isFinite) || !Number.isFinite(sum))
      sum = products.reduce((all, x) => all + x, sum);
    else sum = aligned_sum(a, column.slice(k), products, sum, unit, format);
  }
  return sum;
}

/**
 * @param {number[]} a @param {number[]} b @param {number[]} products @param {number} sum
 * @param {Unit} unit @param {Format} format
 */
function aligned_sum(a, b, products, sum, unit, format) {
  const exponents = sum === 0 ? [] : [exponent_of(sum, FP32_EMIN)];
  products.forEach((x, i) => {
    if (x !== 0) exponents.push(exponent_of(a[i], format.emin) + exponent_of(b[i], format.emin));
  });
  const largest = Math.max(unit.lowest_exponent_fp32, ...exponents);
  const step = 2 ** (largest - unit.fraction_bits);
  const steps = products.reduce((all, x) => all + Math.trunc(x / step), Math.trunc(sum / step));
  return cut(steps * step, unit.out_fraction_bits);
}

/**
 * The sum of numbers: their product with ones.
 * @param {number[]} numbers @param {Unit} unit @param {Format} format
 */
export const tensor_core_sum = (numbers, unit, format) =>
  tensor_core_dot(numbers, Array(numbers.length).fill(1), unit, format);

/** Numbers added in order, each sum rounded. @param {number[]} numbers @param {Format} format */
export const sum_in_order = (numbers, format) =>
  numbers.reduce((sum, x) => round_to(sum + x, format), 0);

/**
 * Products added one after the other to `start`, each product and each sum rounded.
 * @param {number[]} row @param {number[]} column @param {Format} format @param {number} start
 */
export const dot_in_order = (row, column, format, start) =>
  row.reduce((sum, x, i) => round_to(sum + round_to(x * column[i], format), format), start);
