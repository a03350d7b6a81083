// There is one fiber per CUDA thread; the fibers' stacks take turns on one host thread.
// switch_fiber(from, to) saves in `from` where this fiber is, and goes on where `to` was saved. It
// is inlined, so that its jump is predicted call site by call site, and it saves little: the
// compiler is told that every other register is lost, and saves the registers that it still needs.
#pragma once

namespace lab::host {

#if defined(__wasm__)

// WebAssembly cannot switch stacks: cuda/wasm/coroutine.py makes a coroutine of the kernel, which
// is left where it calls lab_suspend, and goes on there once it is resumed.
using Fiber = void*;  // the coroutine's frame
extern "C" bool lab_suspend();
extern "C" [[noreturn]] void lab_leave();
[[gnu::always_inline]] inline void switch_fiber(Fiber&, Fiber&) {
  if (lab_suspend()) lab_leave();
}
// The time to compile a coroutine grows with the square of its branches.
#define LAB_BEFORE_SWITCH [[gnu::noinline]] __attribute__((no_sanitize("thread")))

#else

using Fiber = void*;  // its stack pointer; what the switch saved lies there

#ifdef __APX_F__
#define LAB_APX_REGISTERS                                                                      \
  , "r16", "r17", "r18", "r19", "r20", "r21", "r22", "r23", "r24", "r25", "r26", "r27", "r28", \
      "r29", "r30", "r31"
#else
#define LAB_APX_REGISTERS
#endif

#ifdef __AVX512F__
#define LAB_AVX512_REGISTERS                                                                    \
  , "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25",   \
      "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", \
      "k7"
#else
#define LAB_AVX512_REGISTERS
#endif

#ifdef __ARM_FEATURE_SVE
#define LAB_SVE_REGISTERS                                                                          \
  , "p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10", "p11", "p12", "p13", "p14", \
      "p15"
#else
#define LAB_SVE_REGISTERS
#endif

#ifdef __APPLE__
#define LAB_X18  // it belongs to the platform; elsewhere compilers keep values in it
#else
#define LAB_X18 , "x18"
#endif

#if defined(__x86_64__)
// Needs -mno-red-zone: the pushes write below the stack pointer.
[[gnu::always_inline]] inline void switch_fiber(Fiber& from, Fiber& to) {
  Fiber* save = &from;
  Fiber target = to;
  asm volatile("pushq %%rbp\n\t"
               "pushq %%rbx\n\t"
               "leaq 1f(%%rip), %%rax\n\t"
               "pushq %%rax\n\t"
               "movq %%rsp, (%0)\n\t"
               "movq %1, %%rsp\n\t"
               "popq %%rax\n\t"
               "jmp *%%rax\n"
               "1:\n\t"
               "popq %%rbx\n\t"
               "popq %%rbp"
               : "+D"(save), "+S"(target)
               :
               : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
                 "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                 "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
                 "xmm15" LAB_AVX512_REGISTERS LAB_APX_REGISTERS);
}
#else
// AAPCS64. x29 (frame) and x19 (LLVM's base pointer) may not be called lost, so they are saved
// here. Apple's red zone, 128 bytes below the stack pointer, is stepped over.
// The branch goes through x16 to a `bti j` (hint #36), as branch protection wants it.
[[gnu::always_inline]] inline void switch_fiber(Fiber& from, Fiber& to) {
  register Fiber* save asm("x0") = &from;
  register Fiber target asm("x1") = to;
  asm volatile("sub sp, sp, #160\n\t"
               "stp x29, x19, [sp]\n\t"
               "adr x16, 1f\n\t"
               "str x16, [sp, #16]\n\t"
               "mov x17, sp\n\t"
               "str x17, [x0]\n\t"
               "mov sp, x1\n\t"
               "ldp x29, x19, [sp]\n\t"
               "ldr x16, [sp, #16]\n\t"
               "add sp, sp, #160\n\t"
               "br x16\n"
               "1:\n\t"
               "hint #36"
               : "+r"(save), "+r"(target)
               :
               : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14",
                 "x15", "x16", "x17", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28",
                 "x30", "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9",
                 "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21",
                 "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30",
                 "v31" LAB_X18 LAB_SVE_REGISTERS);
}
#endif
#endif

// Makes `fiber` begin in entry(), which never returns, on the stack [bottom, top).
void start_fiber(Fiber& fiber, char* bottom, char* top, void (*entry)());

#ifndef LAB_BEFORE_SWITCH
#define LAB_BEFORE_SWITCH [[gnu::always_inline]]
#endif

}  // namespace lab::host
