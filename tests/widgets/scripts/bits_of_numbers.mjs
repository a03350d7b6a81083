// node bits_of_numbers.mjs < given.json: numbers in formats, and sums of tensor cores.
import fs from "node:fs";
import {
  fields,
  number_of,
  round_to,
  sum_in_order,
  tensor_core_sum,
} from "../../../book/widgets/bits/arithmetic.mjs";
import { products } from "../../../book/widgets/bits/products.mjs";

const { data, numbers, sums, products: given } = JSON.parse(fs.readFileSync(0, "utf8"));
const said = (x) => (Number.isFinite(x) ? x : String(x));
const rounded = Object.entries(data.formats).map(([name, format]) => [
  name,
  numbers.map((x) => said(round_to(x, format))),
  numbers.map((x) => Object.values(fields(round_to(x, format), format)).join("")),
  numbers.map((x) => said(number_of(fields(round_to(x, format), format), format))),
]);
const summed = sums.map(({ arch, fmt, terms }) => [
  said(tensor_core_sum(terms, data.units[arch][fmt], data.formats[fmt])),
  said(sum_in_order(terms, data.formats[fmt])),
]);
const multiplied = given.map(({ arch, fmt, ...of }) => {
  const ways = Object.fromEntries(products(of, fmt, data));
  return [ways[`tensor core, ${arch}`], ways["fp32, in order"]].map(said);
});
process.stdout.write(JSON.stringify({ rounded, summed, multiplied }));
