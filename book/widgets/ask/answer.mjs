// What exercises.check says to an answer, by the table that book/page_questions.py has made of it.

/**
 * @typedef {{whole?: boolean, choices?: string[], small?: string, large?: string}} Part
 * @typedef {[number, number] | string} Bounds
 * @typedef {{when: Bounds[], passed: boolean, lines: string[]}} Row
 * @typedef {{name: string, asks: string, parts: Part[], rows: Row[], otherwise: string[],
 *   hints: string[]}} Question
 */

/** A number as Python writes a float. @param {number} x */
export function float_text(x) {
  const size = Math.abs(x);
  if (size !== 0 && (size < 1e-4 || size >= 1e16))
    return x.toExponential().replace(/e([+-])(\d)$/, (_, sign, digit) => `e${sign}0${digit}`);
  if (!Number.isInteger(x)) return String(x);
  return `${Object.is(x, -0) ? "-0" : x}.0`;
}

/** @param {Bounds} bounds @param {any} given  a part of an answer */
const fits = (bounds, given) =>
  typeof bounds === "string" ? bounds === given : bounds[0] <= given && given <= bounds[1];

/** @param {Question} question @param {any[]} given  a number or a word for each part */
export function judge({ parts, rows, otherwise }, given) {
  const row = rows.find(({ when }) => when.every((bounds, i) => fits(bounds, given[i])));
  if (row) return { passed: row.passed, lines: row.lines };
  const right = rows.find(({ passed }) => passed)?.when ?? [];
  const wrong = parts.flatMap(({ whole, small = "", large = "" }, i) => {
    const value = given[i];
    if (fits(right[i], value)) return [];
    if (typeof value === "string") return [large.replace("{}", value)];
    const said = value > right[i][1] ? large : small;
    return [said.replace("{}", whole ? String(value) : float_text(value))];
  });
  return { passed: false, lines: [...wrong, ...otherwise] };
}
