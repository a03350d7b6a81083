// node occupancy_of_cases.mjs < cases.json: occupancy and allowed registers of every case.
import fs from "node:fs";
import {
  for_one_more,
  occupancy,
  registers_allowed,
} from "../../labkernels/widgets/page/budget/occupancy.mjs";

const cases = JSON.parse(fs.readFileSync(0, "utf8"));
const found = cases.map(({ gpu, block, blocks }) => ({
  ...occupancy(gpu, block),
  allowed: registers_allowed(gpu, block.threads, blocks),
  more: [for_one_more(gpu, block, "registers"), for_one_more(gpu, block, "smem_bytes")],
}));
process.stdout.write(JSON.stringify(found));
