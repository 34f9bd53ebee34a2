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
// identifies the op and the launch that wrote them; a reader polls until it finds the expected flag. A fence or a
// counter would each add a round trip to memory that is busy with weights. No block overwrites data that another
// still reads, since each op needs data from every block (grid <= tiles of any op).

#pragma once

#include "layout.cuh"  // constants and struct Op, from executors/cuda/persistent_layout.py

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

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

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void bar_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void bar_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void bar_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_wait(u32 bar, u32 parity) {
  u32 done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
  } while (!done);
}
__device__ __forceinline__ void copy_bulk(u32 to, u64 from, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(bar)
               : "memory");
}
__device__ __forceinline__ void compute_sync() { asm volatile("bar.sync 1, %0;" ::"n"(COMPUTE_THREADS) : "memory"); }

__device__ __forceinline__ float low_bf16(u32 w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high_bf16(u32 w) { return __uint_as_float(w & 0xffff0000u); }
__device__ __forceinline__ float from_bf16(u16 v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
__device__ __forceinline__ u16 to_bf16(float v) { return (u16)pack_bf16(v, 0.0f); }
__device__ __forceinline__ float round_bf16(float v) { return low_bf16(pack_bf16(v, 0.0f)); }
__device__ __forceinline__ u32 pack_f16(float low, float high) {
  u32 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
__device__ __forceinline__ float from_f16(u16 v) {
  float d;
  asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(v));
  return d;
}
// Four e4m3 -> two words of two float16, in order.
__device__ __forceinline__ void e4m3_to_f16(u32 w, u32& a, u32& b) {
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
      : "=r"(a), "=r"(b)
      : "r"(w));
}
__device__ __forceinline__ u8 to_e4m3(float v) {
  u16 d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(0.0f), "f"(v));
  return (u8)d;
}
__device__ __forceinline__ float from_e4m3(u32 byte) {
  u32 a, b;
  e4m3_to_f16(byte, a, b);
  return from_f16((u16)a);
}

__device__ __forceinline__ uint4 load_shared(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
__device__ __forceinline__ uint2 load_shared_pair(u32 at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
__device__ __forceinline__ u32 load_shared_word(u32 at) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ uint4 load_plain(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
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

// Sums d of rows g (0, 1) and g + 8 (2, 3), columns 2 t and 2 t + 1, of lane 4 g + t; a: rows g, g + 8, g, g + 8.
#define MMA(name, types, T, c)                                                                     \
  __device__ __forceinline__ void name(T(&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) { \
    asm("mma.sync.aligned." types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"         \
        : "+" c(d[0]), "+" c(d[1]), "+" c(d[2]), "+" c(d[3])                                       \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                                   \
  }
MMA(mma_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32", float, "f")
MMA(mma_f16, "m16n8k16.row.col.f32.f16.f16.f32", float, "f")
MMA(mma_s8, "m16n8k32.row.col.s32.s8.s8.s32", int, "r")
MMA(mma_u8, "m16n8k32.row.col.s32.u8.s8.s32", int, "r")

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
