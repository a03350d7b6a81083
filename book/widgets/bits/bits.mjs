// "Bits and sums": what each format holds of a number, and the results of a sum in several ways.
import { choice, element, table } from "../elements.mjs";
import { Entry } from "../form/entry.mjs";
import { FIELDS } from "../form/fields.mjs";
import { fields, round_to, spacing, sum_in_order, tensor_core_sum } from "./arithmetic.mjs";
import { board_of } from "./board.mjs";
import { mount_products } from "./products.mjs";
import { names_of, short } from "./numbers.mjs";

/**
 * @typedef {import("./arithmetic.mjs").Format} Format
 * @typedef {{formats: Record<string, Format>,
 *   units: Record<string, Record<string, import("./arithmetic.mjs").Unit>>}} Data
 */

const FIRST_NUMBER = "0.1",
  FIRST_SUM = "32768 0.0029296875 0.0029296875 -32768",
  EXACT = 17; // digits that tell all numbers of float64 apart

/** @param {HTMLElement} root @param {Data} data */
export function mount_bits(root, data) {
  const number = new Entry(FIELDS.number, FIRST_NUMBER, { rows: 1 }),
    sum = new Entry(FIELDS.sum, FIRST_SUM, { rows: 2 });
  const format = choice("Its numbers are rounded to", names_of(data), "fp16");
  const shown = element("div", {}),
    summed = element("div", {}),
    product = element("div", {});
  const group = (/** @type {string} */ label, /** @type {Node[]} */ ...fields) =>
    element("div", { class: "lab-form", role: "group", "aria-label": label }, ...fields);
  const draw_number = () => {
    const x = number.number();
    shown.replaceChildren(...(x === null ? [] : [bits_table(x, data)]));
    if (x !== null) board.show(x);
  };
  const board = board_of(data.formats, (x) => {
    number.set(Object.is(x, -0) ? "-0" : short(x, EXACT));
    number.input.dispatchEvent(new Event("input", { bubbles: true })); // as if it was typed
  });
  const draw_sum = () => {
    const terms = sum.numbers();
    summed.replaceChildren(...(terms ? sums(terms, format.select.value, data) : []));
  };
  root.replaceChildren(
    group("what each format holds", number.field),
    board.root,
    shown,
    group("what becomes of it", sum.field, format.field),
    summed,
    product,
  );
  mount_products(product, data);
  number.input.addEventListener("input", draw_number);
  sum.input.addEventListener("input", draw_sum);
  format.select.addEventListener("change", draw_sum);
  draw_number();
  draw_sum();
}

/** @param {number} x @param {Data} data */
function bits_table(x, { formats }) {
  const rows = Object.values(formats).map((format) => {
    const held = round_to(x, format),
      { sign, exponent, fraction } = fields(held, format);
    const bits = element("code", {}, `${sign} ${exponent} ${fraction}`);
    const off = [held - x, spacing(held, format)].map((y) => short(y, 4));
    return [format.name, short(held), ...off, bits];
  });
  const heads = ["format", "holds", "error", "spacing there", "sign, exponent, fraction"];
  return table(`What each format holds of ${short(x)}`, heads, rows);
}

/** @param {number[]} numbers @param {string} name  of the format @param {Data} data */
function sums(numbers, name, { formats, units }) {
  const format = formats[name],
    rounded = numbers.map((x) => round_to(x, format)),
    exact = rounded.reduce((all, x) => all + x, 0);
  const row = (/** @type {string} */ how, /** @type {number} */ x) => [
    how,
    short(x),
    short(x - exact),
  ];
  const rows = [
    row("float64", exact),
    row("fp32, in order", sum_in_order(rounded, formats.fp32)),
    row(`${name}, in order`, sum_in_order(rounded, format)),
    ...Object.entries(units)
      .filter(([, of]) => of[name])
      .map(([arch, of]) => row(`tensor core, ${arch}`, tensor_core_sum(rounded, of[name], format))),
  ];
  const n = rounded.filter((x, i) => x !== numbers[i]).length;
  const words = `${n} of the ${numbers.length} numbers are rounded before they are added.`;
  return [
    element("p", { class: "lab-note" }, words),
    table("The same sum in several ways", ["added in", "sum", "error"], rows),
  ];
}
