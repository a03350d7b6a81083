// Mistakes with barriers, registers and copies: `number` chooses one.
#pragma once
#include "lab/hopper/tma.cuh"
#include "lab/hopper/wgmma.cuh"

namespace gates {
using namespace lab;

struct Params {
  const float* in;  // 1024 of them
  float* out;       // 1024
  int number;
};

struct Smem {
  alignas(1024) float tile[256];
  Mbarrier gate, other;
  u64 filler[2];
};

LAB_DEVICE Smem& open(int count) {
  auto& smem = shared_memory<Smem>();
  if (thread_x() == 0) {
    mbarrier_init(smem.gate, count);
    fence_mbarrier_init();
  }
  sync_block();
  return smem;
}

LAB_KERNEL(64, 1) initialisation(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  const bool first = thread_x() == 0;
  switch (p.number) {
    case 0: mbarrier_arrive(smem.gate); break;  // here: never made
    case 1:
      if (first) mbarrier_init(smem.gate, 0);  // here: no arrivals
      break;
    case 2:
      for (int i = 0; i < 2; ++i)
        if (first) mbarrier_init(smem.gate, 1);
      break;
    case 3:
      if (first) mbarrier_init(smem.gate, 64);
      sync_block();
      mbarrier_arrive(smem.gate);  // here: unfenced
      break;
    case 4:
      if (first) mbarrier_init(smem.gate, 64);
      if (first) fence_mbarrier_init();
      mbarrier_arrive(smem.gate);  // here: unsynced
      break;
    case 5:
      open(64);
      if (first) smem.gate.state = 3;
      sync_block();
      mbarrier_arrive(smem.gate);  // here: written over
      break;
  }
}

LAB_KERNEL(64, 1) phases(LAB_GRID_CONSTANT Params p) {
  Smem& smem = open(p.number == 3 ? 2 : 1);
  const bool first = thread_x() == 0;
  switch (p.number) {
    case 0:
      if (first) mbarrier_arrive_expect_tx(smem.gate, 16);
      if (first) mbarrier_arrive(smem.gate);  // here: one more
      break;
    case 1: mbarrier_wait(smem.gate, 2); break;  // here: parity 2
    case 2:
      if (first) mbarrier_arrive_expect_tx(smem.gate, 48);
      if (first) bulk_load(smem.tile, p.in, 32, smem.gate);
      if (thread_x() < 32) mbarrier_wait(smem.gate, 0);  // here: bytes missing
      else sync_warp();
      break;
    case 3:
      if (first) mbarrier_arrive(smem.gate);
      if (thread_x() == 40) mbarrier_wait(smem.gate, 0);  // here: arrival missing
      else sync_block();                                  // here: meanwhile
      break;
    case 4:
      if (first) mbarrier_arrive_expect_tx(smem.gate, 16);
      if (first) bulk_load(smem.tile, p.in, 32, smem.gate);  // here: too much
      mbarrier_wait(smem.gate, 0);
      break;
    case 5:
      if (first) bulk_load(smem.tile, p.in, 32, smem.gate);  // here: unannounced
      if (first) mbarrier_arrive(smem.gate);
      mbarrier_wait(smem.gate, 1);
      mbarrier_wait(smem.gate, 0);
      mbarrier_wait(smem.gate, 1);
      break;
    case 6:
      if (first) bulk_load(smem.tile, p.in, 32, smem.gate);  // here: not waited for
      break;
    case 7:
      if (thread_x() >= 32) mbarrier_wait(smem.gate, 0);  // here: overrun
      else if (first) {
        mbarrier_arrive(smem.gate);
        mbarrier_arrive(smem.gate);
      }
      break;
    case 8:
      if (first) mbarrier_arrive_expect_tx(smem.gate, -16);  // here: negative
      break;
  }
}

LAB_KERNEL(512, 1) warps(LAB_GRID_CONSTANT Params p) {
  const int warp = thread_x() / 32;
  switch (p.number) {
    case 0: named_sync(0, 64); break;    // here: id
    case 1: named_arrive(1, 48); break;  // here: threads
    case 2:
      if (warp == 0) named_sync(2, 64);  // here: of 64
      else named_sync(2, 96);            // here: of 96
      break;
    case 3:
      if (warp == 0) named_arrive(3, 96);
      if (warp == 0) named_sync(3, 96);  // here: again
      break;
    case 4: named_sync(1 + (thread_x() == 3), 64); break;  // here: lanes differ
    case 5:
      if (warp < 2) named_sync(5, 96);  // here: two of three
      break;
    case 6: setmaxnreg_inc<240>(); break;  // here: no registers
    case 7: setmaxnreg_dec<240>(); break;  // here: lower to more
    case 8:
      setmaxnreg_dec<64>();
      setmaxnreg_inc<40>();  // here: raise to fewer
      break;
    case 9:
      if (warp == 5) setmaxnreg_dec<64>();
      break;
    case 10: warp_uniform(thread_x()); break;  // here: not uniform
    case 11:
      if (warp < 8) setmaxnreg_dec<40>();
      else setmaxnreg_inc<216>();
      if (warp < 4) named_arrive(1, 256);
      else if (warp < 8) named_sync(1, 256);
      for (int i = 0; i < 3; ++i) named_sync(2 + (warp & 1), 256);
      store_global(p.out + thread_x(), static_cast<float>(warp_uniform(warp)));
      break;
  }
}

LAB_KERNEL(32, 1) copies(LAB_GRID_CONSTANT Params p) {
  Smem& smem = open(1);
  smem.tile[thread_x()] = 1.f;
  fence_async_shared();
  sync_block();
  if (thread_x() != 7) return;
  switch (p.number) {
    case 0: bulk_load(smem.tile, p.in, 24, smem.gate); break;          // here: 24 bytes
    case 1: bulk_load(smem.tile, p.in + 1, 16, smem.gate); break;      // here: global 4
    case 2: bulk_load(smem.tile + 1, p.in, 16, smem.gate); break;      // here: shared 4
    case 3: bulk_load(smem.tile + 256, p.in, 1024, smem.gate); break;  // here: beyond shared
    case 4: bulk_load(smem.tile, p.in + 1020, 32, smem.gate); break;   // here: beyond global
    case 5: bulk_add(p.out + 1020, smem.tile, 32); break;              // here: add beyond
    case 6: bulk_add(const_cast<float*>(p.in), smem.tile, 32); break;  // here: add to input
    case 7:
      bulk_add(p.out, smem.tile, 128);  // here: changed
      bulk_commit();
      smem.tile[3] = 2.f;
      bulk_wait_read<0>();
      break;
    case 8:
      bulk_add(p.out, smem.tile, 128);  // here: returns
      bulk_commit();
      bulk_wait_read<1>();
      break;
    case 9:
      bulk_add(p.out, smem.tile, 128);
      bulk_commit();
      bulk_wait_read<0>();
      smem.tile[3] = 2.f;
      if (load_global(p.out) == 0.f) store_global(p.out + 64, 5.f);  // not added yet
      bulk_wait<0>();
      if (load_global(p.out) == 1.f) store_global(p.out + 65, 5.f);
      break;
  }
}

LAB_KERNEL(64, 1) old_machine(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  const u32 r[4] = {};
  switch (p.number) {
    case 0: mbarrier_init(smem.gate, 1); break;
    case 1: named_sync(1, 64); break;
    case 2: stmatrix_x4(0, r); break;
    case 3: bulk_add(p.out, smem.tile, 16); break;
  }
}

// ---- missing waits and fences, for builds with checks

enum Omit { nothing, wait_full, wait_empty, sync_lanes, all_arrive };

// Thread 0 loads tiles into one stage, and warp 1 adds them up.
LAB_KERNEL(64, 1) handover(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  if (thread_x() == 0) {
    mbarrier_init(smem.gate, 1);
    mbarrier_init(smem.other, p.number == all_arrive ? 32 : 1);
    fence_mbarrier_init();
  }
  sync_block();
  const int lane = thread_x() % 32;
  float sum = 0.f;
  for (int step = 0; step < 4; ++step) {
    if (thread_x() == 0) {
      if (p.number != wait_empty) mbarrier_wait(smem.other, 1 ^ (step & 1));
      mbarrier_arrive_expect_tx(smem.gate, 128);               // here: announced
      bulk_load(smem.tile, p.in + step * 32, 128, smem.gate);  // here: brought
    } else if (thread_x() >= 32) {
      if (p.number != wait_full) mbarrier_wait(smem.gate, step & 1);
      sum = sum + smem.tile[lane ^ 1];  // here: added up
      if (p.number == all_arrive) {
        mbarrier_arrive(smem.other);
      } else {
        if (p.number != sync_lanes) sync_warp();
        if (lane == 0) mbarrier_arrive(smem.other);
      }
    }
    if (thread_x() < 32) sync_warp();  // 31 lanes wait here
  }
  if (thread_x() >= 32) store_global(p.out + lane, sum);
}

// Warp 0 copies tiles into one stage, each lane four floats or none, and warp 1 adds them up.
LAB_KERNEL(64, 1) copied(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  if (thread_x() == 0) {
    mbarrier_init(smem.gate, 32);
    mbarrier_init(smem.other, 1);
    fence_mbarrier_init();
  }
  sync_block();
  const int lane = thread_x() % 32;
  float sum = 0.f;
  for (int step = 0; step < 4; ++step) {
    if (thread_x() < 32) {
      mbarrier_wait(smem.other, 1 ^ (step & 1));
      if (lane < 8) cp_async_16(smem.tile + lane * 4, p.in + step * 32 + lane * 4, true);
      mbarrier_arrive_copied(smem.gate);
    } else {
      if (p.number != wait_full) mbarrier_wait(smem.gate, step & 1);
      sum = sum + smem.tile[lane ^ 1];  // here: summed
      sync_warp();
      if (lane == 0) mbarrier_arrive(smem.other);
    }
  }
  if (thread_x() >= 32) store_global(p.out + lane, sum);
}

// Warp 0 writes and warp 1 reads, in turn, with named barriers between.
LAB_KERNEL(64, 1) two_warps(LAB_GRID_CONSTANT Params p) {
  auto& smem = shared_memory<Smem>();
  const int lane = thread_x() % 32;
  float sum = 0.f;
  for (int step = 0; step < 4; ++step) {
    if (thread_x() < 32) {
      if (step > 0 && p.number != 2) named_sync(2, 64);
      smem.tile[lane] = load_constant(p.in + step * 32 + lane);  // here: warp 0 writes
      if (p.number != 1) named_arrive(1, 64);                    // here: warp 0 arrives
    } else {
      if (p.number != 1) named_sync(1, 64);
      sum = sum + smem.tile[lane ^ 1];  // here: warp 1 reads
      if (step < 3 && p.number != 2) named_arrive(2, 64);
    }
  }
  if (thread_x() >= 32) store_global(p.out + lane, sum);
}

// Threads write a tile that the TMA reads or overwrites.
LAB_KERNEL(64, 1) proxies(LAB_GRID_CONSTANT Params p) {
  Smem& smem = open(1);
  smem.tile[thread_x()] = 1.f;  // here: stored
  if ((p.number != 1 && p.number != 4) || thread_x() == 0) fence_async_shared();
  if (p.number != 2) sync_block();
  if (thread_x() != 0) return;
  if (p.number == 4) fence_async_shared();
  if (p.number == 3) {
    mbarrier_arrive_expect_tx(smem.gate, 256);
    bulk_load(smem.tile, p.in, 256, smem.gate);
    const float early = smem.tile[5];  // here: too early
    mbarrier_wait(smem.gate, 0);
    store_global(p.out, early);
    return;
  }
  bulk_add(p.out, smem.tile, 256);  // here: sent
  bulk_commit();
  bulk_wait_read<0>();
}

}  // namespace gates
