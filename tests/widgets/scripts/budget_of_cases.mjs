// node budget_of_cases.mjs < cases.json: what the calculator says of blocks, tiles and shapes.
import fs from "node:fs";
import { ledger_of } from "../../../book/widgets/budget/formula.mjs";
import {
  for_one_more,
  occupancy,
  registers_allowed,
} from "../../../book/widgets/budget/occupancy.mjs";
import { least_time, work_of } from "../../../book/widgets/budget/roofline.mjs";

const { blocks = [], tiles = [], shapes = [] } = JSON.parse(fs.readFileSync(0, "utf8"));
const found = {
  blocks: blocks.map(({ gpu, block, blocks: n }) => ({
    ...occupancy(gpu, block),
    allowed: registers_allowed(gpu, block.threads, n),
    more: [for_one_more(gpu, block, "registers"), for_one_more(gpu, block, "smem_bytes")],
  })),
  tiles: tiles.map(({ entry, values }) => {
    try {
      const all = { ...entry.values, ...values };
      return [ledger_of(entry.smem.rows, all), ledger_of(entry.thread.rows, all)];
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      return null;
    }
  }),
  shapes: shapes.map(({ shape, gpu, how }) => ({
    work: work_of(shape),
    least: least_time(work_of(shape), gpu, how),
  })),
};
process.stdout.write(JSON.stringify(found));
