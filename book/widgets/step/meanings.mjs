// The words in which threads meet: those that are barriers, and what each has done.

export const BARRIERS = ["sync_block", "sync_warp", "mbarrier_wait", "named_sync", "end"];
export const MEANING = /** @type {Record<string, string>} */ ({
  sync_block: "all threads of the block have met",
  sync_warp: "the lanes of the warp have met",
  shfl: "lanes have exchanged a number",
  warp_any: "the warp has asked whether any lane says yes",
  warp_uniform: "all lanes of the warp have the same number",
  ldmatrix_x4: "four 8 x 8 matrices went from shared memory into registers",
  ldmatrix_x4_trans: "four 8 x 8 matrices went from shared memory into registers, transposed",
  movmatrix_trans: "the lanes' registers have changed places: an 8 x 8 matrix is transposed",
  "mma_m16n8k16<f16>": "the tensor core has multiplied 16 x 16 by 16 x 8",
  tma_load: "the TMA was asked for a box, which is in flight",
  mbarrier_wait: "the warp goes on, since a phase has ended: that of the mbarrier",
  named_sync: "the warp has come to a named barrier",
  named_arrive: "the warp has told a named barrier that it came, and goes on",
  setmaxnreg_inc: "the warp takes the registers that others gave up",
  setmaxnreg_dec: "the warp gives up registers",
  wgmma_fence: "what the warp wrote to its registers is known to wgmma",
  wgmma: "the tensor core has got the warp's part of a product",
  wgmma_commit: "the products since the last commit are a group",
  wgmma_wait: "the warp waits for groups of products",
  end: "the checks have stopped the kernel",
});
