// Number formats of tensors, and the checksum of their bytes.

/** @typedef {"fp16"|"bf16"|"fp32"} Format */

/** The largest finite number of each. @type {Record<Format, number>} */
export const LARGEST = {
  fp16: 65504,
  bf16: (2 - 2 ** -7) * 2 ** 127,
  fp32: (2 - 2 ** -23) * 2 ** 127,
};

const word = new DataView(new ArrayBuffer(4));

/** @param {number} x  that float32 holds exactly */
function float_bits(x) {
  word.setFloat32(0, x);
  return word.getUint32(0);
}

/** Round to nearest, ties to even. @param {number} x @returns {number} the 16 bits */
export function to_bf16(x) {
  const bits = float_bits(x);
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

/** Round to nearest, ties to even. @param {number} x @returns {number} the 16 bits */
export function to_fp16(x) {
  const sign = x < 0 || Object.is(x, -0) ? 0x8000 : 0,
    size = Math.abs(x);
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max((float_bits(size) >>> 23) - 127, -14),
    unit = 2 ** (exponent - 10);
  const quotient = size / unit,
    floor = Math.floor(quotient),
    rest = quotient - floor;
  const steps = floor + (rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? 1 : 0);
  return sign | (steps + (exponent + 14) * 1024); // a step over 2047 carries into the exponent
}

/** @param {number} bits */
export function from_fp16(bits) {
  const exponent = (bits >>> 10) & 31,
    fraction = bits & 1023;
  const size =
    exponent === 31
      ? fraction
        ? NaN
        : Infinity
      : exponent === 0
        ? fraction * 2 ** -24
        : (1024 + fraction) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}

/** @param {number} bits */
export function from_bf16(bits) {
  word.setUint32(0, bits << 16);
  return word.getFloat32(0);
}

/** The bytes of numbers in a format. @param {Format} format @param {ArrayLike<number>} numbers */
export function encode(format, numbers) {
  if (format === "fp32") return new Uint8Array(Float32Array.from(numbers).buffer);
  const to = format === "fp16" ? to_fp16 : to_bf16;
  return new Uint8Array(Uint16Array.from(numbers, to).buffer);
}

/** @param {Format} format @param {Uint8Array} bytes @returns {Float64Array} */
export function decode(format, bytes) {
  const buffer = bytes.slice().buffer;
  if (format === "fp32") return Float64Array.from(new Float32Array(buffer));
  return Float64Array.from(new Uint16Array(buffer), format === "fp16" ? from_fp16 : from_bf16);
}

/** @param {string} text */
export function from_base64(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

/** The first 32 bits of the fractional parts of a root of the first primes. */
function prime_words(/** @type {number} */ n, /** @type {number} */ root) {
  /** @type {number[]} */
  const primes = [];
  for (let k = 2; primes.length < n; ++k) if (primes.every((p) => k % p !== 0)) primes.push(k);
  return primes.map((p) => {
    let low = 0n,
      high = 1n << 40n; // of floor(root of p, times 2^32)
    while (high - low > 1n) {
      const middle = (low + high) >> 1n;
      if (middle ** BigInt(root) <= BigInt(p) << BigInt(32 * root)) low = middle;
      else high = middle;
    }
    return Number(low & 0xffffffffn);
  });
}
const ROUND_WORDS = prime_words(64, 3);
const FIRST_WORDS = prime_words(8, 2);

/**
 * SHA-256, which a browser may not offer to a page that is opened as a file.
 * @param {Uint8Array[]} parts
 * @returns {string}
 */
export function sha256(parts) {
  const bytes = parts.reduce((n, part) => n + part.length, 0);
  const data = new Uint8Array(((bytes + 72) >> 6) << 6),
    view = new DataView(data.buffer);
  parts.reduce((at, part) => {
    data.set(part, at);
    return at + part.length;
  }, 0);
  data[bytes] = 0x80;
  view.setBigUint64(data.length - 8, BigInt(bytes) * 8n);
  const turned = (/** @type {number} */ x, /** @type {number} */ n) => (x >>> n) | (x << (32 - n));
  const w = new Int32Array(64),
    sum = Int32Array.from(FIRST_WORDS);
  for (let block = 0; block < data.length; block += 64) {
    for (let i = 0; i < 16; ++i) w[i] = view.getInt32(block + 4 * i);
    for (let i = 16; i < 64; ++i) {
      const x = w[i - 15],
        y = w[i - 2];
      w[i] =
        w[i - 16] +
        w[i - 7] +
        (turned(x, 7) ^ turned(x, 18) ^ (x >>> 3)) +
        (turned(y, 17) ^ turned(y, 19) ^ (y >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = sum;
    for (let i = 0; i < 64; ++i) {
      const first =
        (h +
          (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) +
          ((e & f) ^ (~e & g)) +
          ROUND_WORDS[i] +
          w[i]) |
        0;
      const second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((x, i) => {
      sum[i] += x;
    });
  }
  return Array.from(sum, (x) => (x >>> 0).toString(16).padStart(8, "0")).join("");
}
