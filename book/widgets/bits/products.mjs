// "A product": one element of A B + C in the tensor cores of five generations.
import { choice, element, lines, table } from "../elements.mjs";
import { dot_in_order, round_to, tensor_core_dot } from "./arithmetic.mjs";
import { names_of, numbers_of, short } from "./numbers.mjs";

const FIRST_ROW = "256 0.03125 0.03125 -256",
  FIRST_COLUMN = "128 0.09375 0.09375 128",
  FIRST_START = "0";

/**
 * For each way to compute the product: its name, the result, and the distance from float64.
 * @param {{row: number[], column: number[], start: number}} given @param {string} name  of a format
 * @param {import("./bits.mjs").Data} data
 * @returns {[string, number, number][]}
 */
export function products(given, name, { formats, units }) {
  const format = formats[name],
    { fp32 } = formats;
  const [row, column] = [given.row, given.column].map((all) => all.map((x) => round_to(x, format))),
    start = round_to(given.start, fp32);
  const exact = row.reduce((sum, x, i) => sum + x * column[i], start);
  /** @type {[string, number][]} */
  const ways = [
    ["float64", exact],
    ["fp32, in order", dot_in_order(row, column, fp32, start)],
  ];
  for (const [arch, of] of Object.entries(units))
    if (of[name])
      ways.push([`tensor core, ${arch}`, tensor_core_dot(row, column, of[name], format, start)]);
  return ways.map(([how, x]) => [how, x, x - exact]);
}

/** @param {HTMLElement} root @param {import("./bits.mjs").Data} data */
export function mount_products(root, data) {
  const row = lines("A row of A", FIRST_ROW),
    column = lines("A column of B", FIRST_COLUMN),
    start = lines("The element of C", FIRST_START);
  start.input.rows = 1;
  const format = choice("A and B are rounded to", names_of(data), "fp16");
  const shown = element("div", {});
  const label = "what becomes of a product";
  const group = { class: "lab-form", role: "group", "aria-label": label };
  root.replaceChildren(
    element("div", group, row.field, column.field, start.field, format.field),
    shown,
  );
  const draw = () => {
    try {
      const given = { row: numbers_of(row.input.value), column: numbers_of(column.input.value) };
      if (given.row.length !== given.column.length)
        throw new Error(
          `the column has ${given.column.length} numbers, allowed: ${given.row.length}, as the row`,
        );
      const [first] = numbers_of(start.input.value);
      const rows = products({ ...given, start: first }, format.select.value, data).map(
        ([how, ...numbers]) => [how, ...numbers.map((x) => short(x))],
      );
      const caption = "The same product in several ways";
      shown.replaceChildren(table(caption, ["multiplied and added in", "result", "error"], rows));
    } catch (error) {
      const words = error instanceof Error ? error.message : String(error);
      shown.replaceChildren(element("p", { class: "lab-error", role: "status" }, words));
    }
  };
  for (const { input } of [row, column, start]) input.addEventListener("input", draw);
  format.select.addEventListener("change", draw);
  draw();
}
