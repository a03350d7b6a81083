// node tolerance_of_cases.mjs < given.json: what the pages count, order and find.
import fs from "node:fs";
import { nearest, stepped, words_of } from "../../../book/widgets/read/figure.mjs";
import { histogram } from "../../../book/widgets/read/histogram.mjs";
import { order_of } from "../../../book/widgets/read/sort.mjs";
import { outside, summed } from "../../../book/widgets/read/tolerance.mjs";

const { data, selections, cases, columns, figure } = JSON.parse(fs.readFileSync(0, "utf8"));
const numbers = (values) => Float64Array.from(values, (x) => (x === null ? NaN : x));
process.stdout.write(
  JSON.stringify({
    summed: selections.map(([dtype, keys]) => [...summed(data.rows, dtype, keys)]),
    outside: cases.map(({ found, right, atol, rtol }) =>
      outside({ found: numbers(found), right: numbers(right) }, atol, rtol),
    ),
    bins: cases.map(({ found, right, atol, rtol }) =>
      Array.from(histogram({ found: numbers(found), right: numbers(right) }, atol, rtol)),
    ),
    orders: columns.map(({ texts, down }) => order_of(texts, down)),
    nearest: figure.places.map((place) => nearest(figure.series, 0, place)),
    stepped: figure.keys.map(([at, key]) => stepped(figure.series, at, key)),
    words: words_of(figure.series[0], 1),
  }),
);
