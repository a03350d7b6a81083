// node budget_of_cases.mjs < cases.json: what the calculator says of blocks, tiles and shapes.
import fs from "node:fs";
import {
  for_one_more,
  occupancy,
  registers_allowed,
} from "../../../../book/widgets/budget/occupancy.mjs";
import { least_time, work_of } from "../../../../book/widgets/budget/roofline.mjs";
import { least_of } from "../../../../book/widgets/budget/shape.mjs";
import { NoSuchTile, block_of } from "../../../../book/widgets/budget/tile.mjs";
import { grid_of, variant_rows } from "../../../../book/widgets/budget/variant.mjs";

const given = JSON.parse(fs.readFileSync(0, "utf8")),
  { blocks = [], tiles = [], shapes = [], extremes = [], grids = [] } = given;
const found = {
  blocks: blocks.map(({ gpu, block, blocks: n }) => ({
    ...occupancy(gpu, block),
    allowed: registers_allowed(gpu, block.threads, n),
    more: [for_one_more(gpu, block, "registers"), for_one_more(gpu, block, "smem_bytes")],
  })),
  tiles: tiles.map(({ entry, values, gpu }) => {
    try {
      const rows = { smem: entry.smem.rows, thread: entry.thread.rows };
      return block_of(entry, rows, gpu, values);
    } catch (error) {
      if (!(error instanceof NoSuchTile)) throw error;
      return { symbol: error.symbol, words: error.message };
    }
  }),
  shapes: shapes.map(({ shape, gpu, how }) => ({
    work: work_of(shape),
    least: least_time(work_of(shape), gpu, how),
  })),
  grids: grids.map(({ shape, entry, gpu, known }) => {
    const block = block_of(entry, { smem: entry.smem.rows, thread: entry.thread.rows }, gpu, {});
    return {
      grid: grid_of(shape, entry, gpu, block, known),
      rows: variant_rows(shape, entry, gpu, block, known),
    };
  }),
  extremes: extremes.map(({ shape, entry, gpu }) => least_of(shape, entry, gpu).words),
};
process.stdout.write(JSON.stringify(found));
