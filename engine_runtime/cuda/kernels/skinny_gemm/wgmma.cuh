// Matrix products of a warpgroup (wgmma) of compute capability 9.0.
//
// Constants of the kernel that includes this: ROWS, the columns of the second operand.

#pragma once

#include "primitives.cuh"

// Descriptor of a tile in shared memory with rows of 128 bytes, swizzled in groups of eight rows as TMA writes them. 16
// columns of two bytes further: + 2.
__device__ __forceinline__ u64 tile_descriptor(u32 at) {
  return (u64)(at >> 4 & 0x3fff) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Wait until at most N of the latest groups of products are in flight.
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// d[64, ROWS] += a[64, 16] b[ROWS, 16]^T. Lane 4 g + t of warp w of the group has d of outputs 16 w + g (d[4 j], d[4 j
// + 1]) and 8 further (d[4 j + 2], d[4 j + 3]), columns 8 j + 2 t and the next one. In bf16 with a in shared memory; in
// float16 with a in registers: of these outputs columns 2 t and 2 t + 1 (a[0], a[1]) and 8 further (a[2], a[3]).
template <int N>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], u64 a, u64 b);
template <int N>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const u32 (&a)[4], u64 b);

#define SUMS4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS16(i) SUMS4(i), SUMS4(i + 4), SUMS4(i + 8), SUMS4(i + 12)
#define NAMES8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define NAMES16 NAMES8(0, 1, 2, 3, 4, 5, 6, 7) "," NAMES8(8, 9, 10, 11, 12, 13, 14, 15)
#define NAMES32 NAMES16 "," NAMES8(16, 17, 18, 19, 20, 21, 22, 23) "," NAMES8(24, 25, 26, 27, 28, 29, 30, 31)
#define WGMMA(n, names, a0, a1, a2, a3, b_from_a1, ...)                                                           \
  template <>                                                                                                     \
  __device__ __forceinline__ void wgmma<n>(float (&d)[n / 2], u64 a, u64 b) {                                     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, %" #a0 ", %" #a1          \
                 ", 1, 1, 1, 0, 0;"                                                                               \
                 : __VA_ARGS__                                                                                    \
                 : "l"(a), "l"(b));                                                                               \
  }                                                                                                               \
  template <>                                                                                                     \
  __device__ __forceinline__ void wgmma<n>(float (&d)[n / 2], const u32(&a)[4], u64 b) {                          \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" names "}, {%" #a0 ", %" #a1 ", %" #a2 \
                 ", %" #a3 "}, %" #b_from_a1 ", 1, 1, 1, 0;"                                                      \
                 : __VA_ARGS__                                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                           \
  }
WGMMA(8, "%0,%1,%2,%3", 4, 5, 6, 7, 8, SUMS4(0))
WGMMA(16, NAMES8(0, 1, 2, 3, 4, 5, 6, 7), 8, 9, 10, 11, 12, SUMS4(0), SUMS4(4))
WGMMA(32, NAMES16, 16, 17, 18, 19, 20, SUMS16(0))
WGMMA(64, NAMES32, 32, 33, 34, 35, 36, SUMS16(0), SUMS16(16))
