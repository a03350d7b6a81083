// What each field of the widgets takes: its label, its range, its unit, and how many numbers. The
// widgets read every field by these declarations, and the tests drive them.

/**
 * @typedef {{label: string, unit: string, whole: boolean, min: number, max: number, many: string,
 *   counts: (n: number) => boolean}} Field  many: how many numbers the text has, in words
 */

const ANY = Number.MAX_VALUE,
  MOST_TERMS = 64;

/** A whole number. @returns {Field} */
const whole = (
  /** @type {string} */ label,
  /** @type {string} */ unit,
  /** @type {number} */ min,
  /** @type {number} */ max,
) => ({ label, unit, whole: true, min, max, many: "a whole number", counts: (n) => n === 1 });

/** Numbers of float64. @param {string} label @param {number} most @returns {Field} */
const real = (label, most = 1) => ({
  label,
  unit: "",
  whole: false,
  min: -ANY,
  max: ANY,
  many: most === 1 ? "a number" : `1 to ${most} numbers`,
  counts: (n) => n >= 1 && n <= most,
});

export const FIELDS = {
  seed: whole("Seed", "", 0, 2 ** 32 - 1),
  q: real("Your q"), // the range and the counts of these three follow from the tensors
  k: real("Your K"),
  v: real("Your V"),
  lane: whole("Lane", "", 0, 31),
  buffer_row: whole("Row", "", 0, 0), // the largest row and piece are those of the buffer
  piece: whole("Piece of 16 bytes", "", 0, 0),
  symbol: whole("", "", 1, 1024), // of a tile, whose label is the symbol's meaning
  threads: whole("Threads per block", "threads", 1, 1024), // these two follow from the GPU
  registers: whole("Registers per thread", "registers", 1, 255),
  smem_bytes: whole("Shared memory, bytes", "bytes", 0, 2 ** 31 - 1), // a launch has it in an int
  requests: whole("Requests", "requests", 1, 65536),
  tokens: whole("Query tokens of each", "tokens", 1, 2 ** 20),
  keys: whole("Keys of each", "keys", 1, 2 ** 24),
  q_heads: whole("Query heads", "heads", 1, 1024),
  kv_heads: whole("KV heads", "heads", 1, 1024),
  window: whole("Keys before a token that it sees", "keys", 0, 2 ** 24),
  number: real("A number"),
  sum: real("A sum", MOST_TERMS),
  row: real("A row of A", MOST_TERMS),
  column: real("A column of B", MOST_TERMS),
  start: real("The element of C"),
};

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const text_of = new Intl.NumberFormat("en", { maximumSignificantDigits: 17 });

/** @param {number} x */
const written = (x) => (Math.abs(x) < 1e15 ? text_of.format(x) : x.toExponential(4));

/** What a field takes, in words. @param {Field} field */
export function taken({ unit, min, max, many }) {
  const range = max === ANY ? "that float64 holds" : `from ${written(min)} to ${written(max)}`;
  return `${many}${unit && ` of ${unit}`} ${range}`;
}

/**
 * The numbers of a text. Raises: RangeError that says what is wrong with the text, and what the
 * field takes.
 * @param {Field} field @param {string} text
 */
export function numbers_in(field, text) {
  const words = text.split(/[\s,;[\]]+/).filter((word) => word !== "");
  const refused = (/** @type {string} */ given) =>
    new RangeError(`${given}; this field takes ${taken(field)}.`);
  if (words.length === 0) throw refused("Nothing is given");
  const numbers = words.map((word, i) => {
    const x = NUMBER.test(word) ? Number(word) : NaN;
    const fits = x >= field.min && x <= field.max && (!field.whole || Number.isInteger(x));
    const place = words.length > 1 ? ` as number ${i + 1}` : "";
    if (!fits) throw refused(`"${word}" is given${place}`);
    return x;
  });
  if (!field.counts(numbers.length)) throw refused(`${written(numbers.length)} numbers are given`);
  return numbers;
}

/**
 * A quantity for people: all its whole digits, or some significant ones, and a power of ten only
 * where a number has no other short form.
 * @param {number} x @param {number} digits  significant ones
 */
export function figures(x, digits = 4) {
  const size = Math.abs(x);
  if (x === 0 || !Number.isFinite(x)) return String(x);
  if (size < 1e-5 || size >= 1e15) return x.toExponential(digits - 1);
  return size >= 10 ** digits
    ? Math.round(x).toLocaleString("en")
    : x.toLocaleString("en", {
        maximumSignificantDigits: digits,
        minimumSignificantDigits: digits,
      });
}
