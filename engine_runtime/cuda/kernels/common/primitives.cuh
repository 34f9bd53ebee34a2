// Types, barriers, bulk copies, conversions and matrix instructions of the kernels in CUDA C++.

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void bar_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
// Barriers that were initialized are there for copies that begin afterwards.
__device__ __forceinline__ void publish_bars() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
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
__device__ __forceinline__ bool bar_test(u32 bar, u32 parity) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(bar), "r"(parity)
               : "memory");
  return done;
}
// Weights, K and V are read once a step: they leave the L2 cache first, and activations, tables and code stay there.
#define EVICT_FIRST 0x12F0000000000000ull  // as createpolicy.fractional yields it for L2::evict_first
#define EVICT_LAST 0x14F0000000000000ull
__device__ __forceinline__ void copy_bulk(u32 to, u64 from, u32 bytes, u32 bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar), "l"(EVICT_FIRST)
      : "memory");
}

// Programmatic dependent launch: the next kernel may start when every block has called the first one or ended; results
// of earlier kernels are there after the second one.
__device__ __forceinline__ void start_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

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
__device__ __forceinline__ u32 pack_f16_saturated(float low, float high) {
  return pack_f16(fminf(fmaxf(low, -65504.0f), 65504.0f), fminf(fmaxf(high, -65504.0f), 65504.0f));
}
__device__ __forceinline__ u16 to_f16_saturated(float v) { return (u16)pack_f16_saturated(v, 0.0f); }
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
__device__ __forceinline__ void store_shared(u32 at, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
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
__device__ __forceinline__ float2 load_shared_floats(u32 at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
  return v;
}
__device__ __forceinline__ void store_shared_float(u32 at, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
// Four matrices of 8 rows of 16 bytes, whose rows are at the addresses of lanes 0 to 7, 8 to 15, ...: lane 4 g + t gets
// bytes 4 t to 4 t + 3 of row g of each.
__device__ __forceinline__ void load_matrices(u32 (&d)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(at));
}
// How rows are stored that the next product multiplies.
#define ROWS_BF16 0
#define ROWS_F16 1
#define ROWS_F16_INTERLEAVED 2
// Where a column is in interleaved rows, which are multiplied by a weight in fp8: of 16 columns, 4 t to 4 t + 3 are at
// 2 t, 2 t + 1, 2 t + 8, 2 t + 9. So the four bytes of the weight that ldmatrix gives a lane are the columns that wgmma
// expects there.
__device__ __forceinline__ u32 interleaved(u32 column) {
  return (column & ~15u) | (column & 12) >> 1 | (column & 2) << 2 | (column & 1);
}
// Four matrices of 8 x 8 values of two bytes, transposed: lane 8 i + j gives the address of row j of matrix i; lane 4 g + t
// gets column g of rows 2 t and 2 t + 1.
__device__ __forceinline__ void load_transposed(u32 (&d)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(at));
}
// A matrix of 8 x 8 values of two bytes, of which lane 4 g + t has row g, columns 2 t and 2 t + 1: the transposed one.
__device__ __forceinline__ u32 transposed(u32 v) {
  u32 d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(v));
  return d;
}
__device__ __forceinline__ uint4 load_plain(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

__device__ __forceinline__ void prefetch_line(const void* p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p)); }

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
