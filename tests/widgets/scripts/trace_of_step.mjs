// node trace_of_step.mjs ASSET [OFF]: what the stepper shows of a run, with part OFF broken.
import fs from "node:fs";
import { run } from "../../../book/widgets/machine/jobs.mjs";
import {
  elements_of,
  merged,
  replay,
  REGISTERS,
  softmax_of,
  state_of,
} from "../../../book/widgets/machine/trace.mjs";

const asset = JSON.parse(fs.readFileSync(process.argv[2], "utf8")),
  { module, cases, maps, rows, barriers } = asset,
  plan = cases.recorded,
  off = process.argv[3] === undefined ? undefined : Number(process.argv[3]);
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

/** How each buffer stands after an event of the hardware's barriers and copies. */
function moment({ word, warp, awaited }, i) {
  const { seen, bytes } = replay(events, i + 1, plan.smem_bytes);
  const states = maps[0].tiles.map(({ name, byte, rows, chunks }) => {
    const codes = seen.slice(byte / 16, byte / 16 + rows * chunks);
    return [name, [...new Set(Array.from(codes, state_of))]];
  });
  const k = maps[0].tiles.find(({ name }) => name === "K0");
  const held = bytes.slice(k.byte, k.byte + k.rows * k.chunks * 16);
  const by = barriers[awaited] ?? "";
  const k0 = by === "K 0 full" ? Array.from(held) : null;
  return { word, warp, by, from: Object.fromEntries(states), k0 };
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
  softmax: rows.map((row) => {
    const told = row.warps.filter((warp) => done.softmax[warp]);
    return told.length === 0 ? null : merged(told.map((w) => softmax_of(done.softmax[w], row)));
  }),
  moments: events.flatMap((event, i) =>
    ["tma_load", "mbarrier_wait"].includes(event.word) ? [moment(event, i)] : [],
  ),
};
process.stdout.write(JSON.stringify(found));
