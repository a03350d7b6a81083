// "A product": one element of A B + C in the tensor cores of five generations.
import { choice, element, table } from "../elements.mjs";
import { Entry } from "../form/entry.mjs";
import { FIELDS } from "../form/fields.mjs";
import { dot_in_order, round_to, tensor_core_dot } from "./arithmetic.mjs";
import { names_of, short } from "./numbers.mjs";

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
  const row = new Entry(FIELDS.row, FIRST_ROW, { rows: 2 }),
    column = new Entry(FIELDS.column, FIRST_COLUMN, { rows: 2 }),
    start = new Entry(FIELDS.start, FIRST_START, { rows: 1 });
  const format = choice("A and B are rounded to", names_of(data), "fp16");
  const shown = element("div", {});
  const label = "what becomes of a product";
  const group = { class: "lab-form", role: "group", "aria-label": label };
  root.replaceChildren(
    element("div", group, row.field, column.field, start.field, format.field),
    shown,
  );
  const draw = () => {
    const [a, b, c] = [row.numbers(), column.numbers(), start.number()];
    shown.replaceChildren();
    if (a && b && a.length !== b.length)
      column.refuse(`The row has ${a.length} numbers, and the column has ${b.length}.`);
    if (!a || c === null || b?.length !== a.length) return;
    const rows = products({ row: a, column: b, start: c }, format.select.value, data).map(
      ([how, ...numbers]) => [how, ...numbers.map((x) => short(x))],
    );
    const caption = "The same product in several ways";
    shown.append(table(caption, ["multiplied and added in", "result", "error"], rows));
  };
  for (const { input } of [row, column, start]) input.addEventListener("input", draw);
  format.select.addEventListener("change", draw);
  draw();
}
