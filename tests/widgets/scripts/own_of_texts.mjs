// node own_of_texts.mjs ASSET < given.json: a run of typed numbers, and what is said of wrong ones.
import fs from "node:fs";
import { parse } from "../../../book/widgets/form/own_form.mjs";
import { decode } from "../../../book/widgets/machine/formats.mjs";
import { run } from "../../../book/widgets/machine/jobs.mjs";
import { tensors_of } from "../../../book/widgets/machine/launches.mjs";

const { module, cases } = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const { keys, texts, wrong } = JSON.parse(fs.readFileSync(0, "utf8"));
const plan = cases[keys],
  a = plan.attention;
const own = Object.fromEntries(Object.entries(texts).map(([r, text]) => [r, parse(r, text, a)]));
const drawn = await run({ module, plan, seed: 0, kind: "normal" }, async () => {});
const typed = await run({ module, plan, seed: 7, kind: "own", own }, async () => {});
const said = wrong.map(([role, text]) => {
  try {
    return `taken: ${parse(role, text, a).length}`;
  } catch (error) {
    return error.message;
  }
});
const held = Object.fromEntries(tensors_of(plan, 7, "own", own).map((t) => [t.name, t.bytes]));
const pages = new Int32Array(held.page_table.slice().buffer);
const row = own.k.length / a.kv_lens[0];
const numbers = decode(a.dtype, held.k_pool);
const through_pages = own.k.map((_, i) => {
  const key = Math.floor(i / row);
  const slot = pages[Math.floor(key / a.page_size)] * a.page_size + (key % a.page_size);
  return numbers[slot * row + (i % row)];
});
const in_place = through_pages.every((x, i) => x === own.k[i]);
process.stdout.write(JSON.stringify({ drawn: drawn.sum, typed: typed.sum, in_place, said }));
