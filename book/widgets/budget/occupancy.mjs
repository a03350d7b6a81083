// labkernels.budget.occupancy, formula by formula; a test compares the two on random blocks.

/**
 * @typedef {{name: string, arch: string, registers_per_sm: number, registers_per_thread_max:
 *   number,
 *   register_allocation_unit_per_warp: number, warp_allocation_granularity: number,
 *   smem_per_sm_bytes: number, smem_per_block_max_bytes: number,
 *   smem_reserved_per_block_bytes: number, smem_allocation_unit_bytes: number,
 *   threads_per_block_max: number, warps_per_sm_max: number, blocks_per_sm_max: number}} Gpu
 * @typedef {{threads: number, registers: number, smem_bytes: number}} Block
 */

const WARP = 32;

/** @param {number} value @param {number} unit */
const rounded_up = (value, unit) => Math.ceil(value / unit) * unit;

/**
 * Blocks that each resource allows on an SM, in Python's order.
 * @param {Gpu} gpu
 * @param {Block} block
 */
export function limits(gpu, { threads, registers, smem_bytes }) {
  const warps = Math.ceil(threads / WARP),
    granularity = gpu.warp_allocation_granularity;
  const per_warp = rounded_up(registers * WARP, gpu.register_allocation_unit_per_warp);
  const held = Math.floor(Math.floor(gpu.registers_per_sm / granularity) / per_warp) * granularity;
  const fits = per_warp * rounded_up(warps, granularity) <= gpu.registers_per_sm;
  const used = smem_bytes + gpu.smem_reserved_per_block_bytes;
  return {
    registers: fits ? Math.floor(held / warps) : 0,
    "shared memory":
      smem_bytes > gpu.smem_per_block_max_bytes
        ? 0
        : Math.floor(gpu.smem_per_sm_bytes / rounded_up(used, gpu.smem_allocation_unit_bytes)),
    warps: Math.floor(gpu.warps_per_sm_max / warps),
    blocks: gpu.blocks_per_sm_max,
  };
}

/** @param {Gpu} gpu @param {Block} block */
export function occupancy(gpu, block) {
  const by = Object.entries(limits(gpu, block));
  const [limit, blocks] = by.reduce((least, one) => (one[1] < least[1] ? one : least));
  const warps = blocks * Math.ceil(block.threads / WARP);
  return { blocks, limit, by, warps, fraction: warps / gpu.warps_per_sm_max };
}

/**
 * Registers that a thread may have, as ptxas counts them.
 * @param {Gpu} gpu
 * @param {number} threads
 * @param {number} blocks
 */
export function registers_allowed(gpu, threads, blocks) {
  const share = Math.floor(gpu.registers_per_sm / (blocks * threads));
  return Math.min(gpu.registers_per_thread_max, Math.floor(share / 8) * 8);
}

/**
 * The largest amount of a resource per block with which one more block fits an SM; null if none.
 * @param {Gpu} gpu @param {Block} block @param {"registers" | "smem_bytes"} what
 */
export function for_one_more(gpu, block, what) {
  const wanted = occupancy(gpu, block).blocks + 1,
    name = what === "registers" ? what : "shared memory";
  const enough = (/** @type {number} */ amount) =>
    limits(gpu, { ...block, [what]: amount })[name] >= wanted;
  let low = what === "registers" ? 1 : 0,
    high = block[what];
  if (!enough(low)) return null;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (enough(middle)) low = middle;
    else high = middle - 1;
  }
  return low;
}
