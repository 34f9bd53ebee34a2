// Tensor copies (TMA) of compute capability 9.0: boxes of a tensor, from device memory into shared memory.

#pragma once

#include "primitives.cuh"

// A CUtensorMap, passed by value; made by cuda/tensor_map.py.
struct alignas(64) TensorMap {
  u64 words[16];
};

// Bring the map into the cache before the first copy.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
__device__ __forceinline__ void copy_tensor(u32 to, const TensorMap& map, u32 bar, u64 policy, int a, int b) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%4, %5}], [%2], %3;" ::"r"(to),
      "l"(&map), "r"(bar), "l"(policy), "r"(a), "r"(b)
      : "memory");
}
__device__ __forceinline__ void copy_tensor(u32 to, const TensorMap& map, u32 bar, u64 policy, int a, int b, int c) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(to),
      "l"(&map), "r"(bar), "l"(policy), "r"(a), "r"(b), "r"(c)
      : "memory");
}
__device__ __forceinline__ void copy_tensor(u32 to, const TensorMap& map, u32 bar, u64 policy, int a, int b, int c,
                                            int d) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(to),
      "l"(&map), "r"(bar), "l"(policy), "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}
