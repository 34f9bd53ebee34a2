// Persistent decode kernel: one row through all layers and heads of the language model in one launch.
//
// In: the op list (linear layers and attentions, in order), the row's inputs on the device. Out: K and V of the row
// in the pool, logits. step.cu is compiled at run time; it includes linear.cuh and attention.cuh, which include this
// file (memory and flagged exchange). layout.cuh is generated for the sizes of the network.
//
// One block per multiprocessor. Its producer warps copy the weights of all ops, and between them the keys and values
// of earlier rows, into the pipeline stages of a ring in shared memory. They wait for free stages only, so that
// device memory is read continuously while the other warps synchronize between ops. A bulk copy costs about 45 cycles
// whatever its size, so copies are few and large. The compute warps use tensor cores: a tile is 16 output rows; x is
// in all columns (native, fp8), or its high and low bytes alternate (int8, int4). With quantized weights, x is scaled
// by its largest magnitude: to float16 with fp8, to 16-bit integers with int8 and int4. The root mean square of x is
// applied last: rms_norm(x) * norm @ W^T is ((x * norm) @ W^T) / rms(x).
//
// Blocks exchange flagged data only: every eight bytes hold two bfloat16 values (or one float32) and a flag that
// identifies the op and the launch that wrote them, written and read as a whole by relaxed accesses at GPU scope; a
// reader polls until it finds the expected flag, that of the op that wrote its input (Op::source). A fence or a counter
// would each add a round trip to memory that is busy with weights. The flag is launch * MAX_OPS + op. Launches count
// from 1, so a zeroed buffer never matches; the last block to end increments the number on the device, so a replayed
// graph needs no argument for it. Logits have no flags: the next kernel on the stream reads them.
//
// Attention: block b serves KV head b % KV_HEADS and split b / KV_HEADS. Split 0 also takes the new token. Each split
// publishes its sums; then each block of the head merges all splits for its part of the dimensions.
//
// It cannot deadlock. (1) A cooperative launch makes all blocks resident. (2) Producers wait for nothing that another
// block does. (3) Within a block all roles go through the same list in the same order, each waiting for work of the
// same op or an earlier one. (4) Between blocks a linear op waits for an earlier op; attention also for partial results
// of its own op, and each block stores its own before it reads others. So the earliest unfinished op can always
// proceed.
//
// Nothing is overwritten too early. A linear op reads its whole input, to which every block contributed at least one
// tile (grid <= tiles of any op), and a block contributes only after it has read what earlier ops needed. So a block
// that holds the whole input knows that every block has finished reading the buffers before it. The residual needs no
// flag: ops with HIDDEN outputs are tiled alike, so the warp that reads a value is the one that wrote it.

#pragma once

#include "layout.cuh"  // constants and struct Op, from executors/cuda/persistent_layout.py
#include "primitives.cuh"

static_assert(DIM == 128 && HEADS / KV_HEADS == 4 && INT4_GROUP == 128, "sizes that the code is written for");
static_assert(STAGES <= MAX_STAGES, "barriers of the ring");

#define COMPUTE_THREADS (32 * COMPUTE_WARPS)
#define ROWS_PER_PRODUCER (TILE_ROWS / PRODUCER_WARPS)
#define MAX_IN_FLIGHT 3  // stages in flight per producer warp; more would delay the exchange between blocks
#define SCALES_AT (TILE_ROWS * ROW_STRIDE)
#define X_LOADS ((MAX_WIDTH + COMPUTE_THREADS * 8 - 1) / (COMPUTE_THREADS * 8))
#define LOADS_PER_BATCH 3                                                        // of X_LOADS
#define NORM_LOADS ((HIDDEN + COMPUTE_THREADS * 8 - 1) / (COMPUTE_THREADS * 8))  // inputs of width HIDDEN have a norm
#define GROUP (HEADS / KV_HEADS)                                                 // query heads per KV head
#define LARGEST_INT16_X 32000.0f  // value of the largest x in 16 bits; the low byte's carry does not overflow
#define MAX_POLLS (1u << 23)      // watchdog: trap on deadlock after a few seconds
#define AT_STAGE_BARRIERS AT_BARRIERS
#define AT_PARTIAL_BARRIERS (AT_BARRIERS + 16 * MAX_STAGES)

__device__ __forceinline__ void compute_sync() { asm volatile("bar.sync 1, %0;" ::"n"(COMPUTE_THREADS) : "memory"); }
// Two values with their flags: {a, flag, b, flag}. Bypasses L1, since another multiprocessor wrote them.
__device__ __forceinline__ uint4 load_flagged(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ void load_flagged_if(u32 wanted, uint4& v, const void* p) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "l"(p), "r"(wanted)
               : "memory");
}
__device__ __forceinline__ void count_poll(u32& polls) {
  if (++polls > MAX_POLLS) __trap();
}
__device__ __forceinline__ uint4 wait_flagged(const void* p, u32 flag) {
  uint4 v;
  u32 polls = 0;
  do {
    v = load_flagged(p);
    count_poll(polls);
  } while (v.y != flag || v.w != flag);
  return v;
}
__device__ __forceinline__ u32 wait_word(const void* p, u32 flag) {
  u32 v, found, polls = 0;
  do {
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v), "=r"(found) : "l"(p) : "memory");
    count_poll(polls);
  } while (found != flag);
  return v;
}
__device__ __forceinline__ void store_word(void* p, u32 v, u32 flag) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v), "r"(flag) : "memory");
}
__device__ __forceinline__ void store_flagged(void* p, float a, float b, u32 flag) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %3, %2, %3};" ::"l"(p), "r"(__float_as_uint(a)),
               "r"(__float_as_uint(b)), "r"(flag)
               : "memory");
}

template <int F>
__device__ __forceinline__ u32 row_bytes(u32 columns) {
  return F == NATIVE ? 2 * columns : F == INT4 ? columns / 2 : columns;
}

// Position in the ring of a producer or consumer.
struct PipelineState {
  u32 stage = 0, parity = 0;
  __device__ __forceinline__ void next(u32 count = STAGES) {
    if (++stage == count) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// State of a producer warp: the next stage to fill, and its oldest copy in flight.
struct Producer {
  PipelineState state, oldest;
  u32 in_flight = 0;
  // Wait until the next stage may be filled; returns the barrier that the copies signal.
  __device__ __forceinline__ u32 acquire_stage(u32 base) {
    u32 full = base + AT_STAGE_BARRIERS + 16 * state.stage;
    // The other parity: a fresh barrier counts as completed in the phase before its first, so the first round does not
    // wait.
    bar_wait(full + 8, state.parity ^ 1);
    if (in_flight == MAX_IN_FLIGHT) {
      bar_wait(base + AT_STAGE_BARRIERS + 16 * oldest.stage, oldest.parity);
      oldest.next();
    } else {
      ++in_flight;
    }
    return full;
  }
};

struct Inputs {
  const int* table;
  char* pool;
  const u16 *cosine, *sine;
  u64 embedding_row;  // offset in bytes
  u32 position, epoch;
  u16* kept_trunk;
  // Flagged. split_sums: [KV_SPLITS][HEADS][DIM], then {top, total} [KV_SPLITS][HEADS].
  char *qkv, *attended, *split_sums;
  u32 ring;  // shared memory
  __device__ __forceinline__ u32 flag(u32 op) const { return epoch * MAX_OPS + op; }
};
