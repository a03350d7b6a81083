// Producer warps fill, and consumer warps read, a ring of stages in shared memory.
#pragma once
#include "lab/hopper/mbarrier.cuh"

namespace lab {

// Each user of a ring counts its uses by a plain number n. Use n is of stage n % Stages, in phase n
// / Stages of the stage's barriers. A consumer waits for the end of this phase of `full`, and a
// producer for the end of the phase before it of `empty`.
template <int Stages> struct Pipeline {
  Mbarrier full[Stages], empty[Stages];

  LAB_DEVICE static int stage(u32 n) { return n % Stages; }
  LAB_DEVICE static int phase(u32 n) { return n / Stages & 1; }

  // One thread calls this, before fence_mbarrier_init. `producers` arrivals fill a stage, and
  // `consumers` arrivals empty it.
  LAB_DEVICE void init(int producers, int consumers) {
    for (int i = 0; i < Stages; ++i) {
      mbarrier_init(full[i], producers);
      mbarrier_init(empty[i], consumers);
    }
  }
};

// Waits until the stage of use n has been read, and may be filled.
template <int Stages> LAB_DEVICE void producer_acquire(Pipeline<Stages>& ring, u32 n) {
  mbarrier_wait(ring.empty[ring.stage(n)], ring.phase(n) ^ 1);
}
// Waits until the stage of use n is filled, and may be read.
template <int Stages> LAB_DEVICE void consumer_wait(Pipeline<Stages>& ring, u32 n) {
  mbarrier_wait(ring.full[ring.stage(n)], ring.phase(n));
}
// Arrives once for the whole warp, when all its lanes have reached this call.
LAB_DEVICE void warp_arrive(Mbarrier& b) {
  sync_warp();
  if ((thread_x() & 31) == 0) mbarrier_arrive(b);
}
// Announces that this warp has read the stage of use n.
template <int Stages> LAB_DEVICE void consumer_release(Pipeline<Stages>& ring, u32 n) {
  warp_arrive(ring.empty[ring.stage(n)]);
}

}  // namespace lab
