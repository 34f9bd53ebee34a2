// Blocks of a cluster (compute capability 9.0), which store into each other's shared memory. Without clusters, a block is
// a cluster of its own.

#pragma once

#include "primitives.cuh"

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ u32 cluster_size() {
  u32 size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
// All threads of the cluster call both, one after the other. The first one orders nothing: mbarriers that are initialized
// before it have a fence of their own. Not for a launch without clusters, where the second one would be a barrier of the
// block, at which its warps must arrive together.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The address of what the block of this rank has at the same place in its shared memory.
__device__ __forceinline__ u32 address_in(u32 rank, u32 at) {
  u32 d;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(d) : "r"(at), "r"(rank));
  return d;
}
// Store into another block, whose barrier counts the bytes when they are there.
__device__ __forceinline__ void store_async(u32 to, float4 v, u32 bar) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(bar)
               : "memory");
}
// Wait for what other blocks stored.
__device__ __forceinline__ void bar_wait_for_cluster(u32 bar, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
  } while (!done);
}
