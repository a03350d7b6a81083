// node bits_of_numbers.mjs < given.json: numbers in formats, and sums of tensor cores.
import fs from "node:fs";
import {
  fields,
  round_to,
  sum_in_order,
  tensor_core_sum,
} from "../../../labkernels/widgets/page/bits/arithmetic.mjs";

const { data, numbers, sums } = JSON.parse(fs.readFileSync(0, "utf8"));
const said = (x) => (Number.isFinite(x) ? x : String(x));
const rounded = Object.entries(data.formats).map(([name, format]) => [
  name,
  numbers.map((x) => said(round_to(x, format))),
  numbers.map((x) => Object.values(fields(round_to(x, format), format)).join("")),
]);
const summed = sums.map(({ arch, fmt, terms }) => [
  said(tensor_core_sum(terms, data.units[arch][fmt], data.formats[fmt])),
  said(sum_in_order(terms, data.formats[fmt])),
]);
process.stdout.write(JSON.stringify({ rounded, summed }));
