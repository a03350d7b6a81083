// node trace_of_broken.mjs ASSET OFF: what the stepper shows of a run of the broken kernel.
import fs from "node:fs";
import { run } from "../../labkernels/widgets/page/machine/jobs.mjs";
import {
  elements_of,
  merged,
  replay,
  REGISTERS,
  softmax_of,
} from "../../labkernels/widgets/page/machine/trace.mjs";

const { module, cases, group } = JSON.parse(fs.readFileSync(process.argv[2], "utf8")),
  plan = cases.recorded,
  off = Number(process.argv[3]);
const job = { module, plan, seed: 0, kind: "normal", off, traced: true };
const { events, error } = await run(job, async () => {});
const first_sync = events.findIndex((event) => event.word === "sync_block");
const begun = replay(events, first_sync + 1, plan.smem_bytes),
  done = replay(events, events.length, plan.smem_bytes);

/** @param {Uint32Array} lanes  as [row][column] of 16-bit patterns, or of floats */
function matrix(lanes, operand, first, n, rows, columns) {
  const made = Array.from({ length: rows }, () => Array(columns).fill(null));
  for (let lane = 0; lane < 32; ++lane)
    for (let register = 0; register < n; ++register)
      elements_of(operand, register, lane).forEach(({ row, column }, half) => {
        const word = lanes[REGISTERS * lane + first + register];
        made[row][column] =
          operand === "d"
            ? new Float32Array(Uint32Array.of(word).buffer)[0]
            : (word >>> (16 * half)) & 0xffff;
      });
  return made;
}
const product = events.find((event) => event.lanes);
const found = {
  error,
  words: events.map(({ word, file, line, warp }) => [word, file, line, warp]),
  seen: Array.from(begun.seen),
  bytes: Array.from(begun.bytes),
  warp: product?.warp,
  a: product && matrix(product.lanes, "a", 0, 4, 16, 16),
  b: product && matrix(product.lanes, "b", 4, 2, 16, 8),
  d: product && matrix(product.lanes, "d", 6, 4, 16, 8),
  softmax: Array.from({ length: product ? group : 0 }, (_, row) =>
    merged(Object.values(done.softmax).map((lanes) => softmax_of(lanes, row))),
  ),
};
process.stdout.write(JSON.stringify(found));
