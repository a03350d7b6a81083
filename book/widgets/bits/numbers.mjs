// Numbers that a reader types, and how the explorer shows numbers.

const MOST = 64, // numbers in a field
  DIGITS = 9; // enough to tell all numbers of fp32 apart

/** @param {number} x @param {number} digits */
export function short(x, digits = DIGITS) {
  if (!Number.isFinite(x)) return String(x);
  const rounded = Number(x.toPrecision(digits));
  return rounded === 0 || (Math.abs(x) >= 1e-3 && Math.abs(x) < 1e6)
    ? String(rounded)
    : rounded.toExponential();
}

/** The numbers of a text. Raises: Error that names a word that is none. @param {string} text */
export function numbers_of(text) {
  const words = text.split(/[\s,;]+/).filter((word) => word !== "");
  if (words.length === 0 || words.length > MOST)
    throw new Error(`${words.length} numbers, allowed: 1 to ${MOST}`);
  return words.map((word) => {
    const x = Number(word);
    if (!Number.isFinite(x)) throw new Error(`"${word}", allowed: finite numbers`);
    return x;
  });
}

/** The formats that tensor cores multiply. @param {import("./bits.mjs").Data} data */
export const names_of = ({ formats, units }) =>
  Object.keys(formats)
    .filter((name) => units.sm_90[name])
    .map((value) => ({ value, text: value }));
