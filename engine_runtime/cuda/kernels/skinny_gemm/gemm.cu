// A few rows times a large weight, at the bandwidth of device memory: skinny GEMM.
//
// In: rows [CAPACITY, columns] in bf16, weight [outputs, columns] in bf16; or rows in float16 and a weight in fp8 with
// a float32 scale for each output. Out: float32 partial sums [splits, CAPACITY, outputs], one for each part of the
// columns; or, GATED, silu(gate) * up [CAPACITY, outputs / 2] in the dtype of the rows, where the first half of the
// weight is the gate. Block b computes 64 GROUPS outputs (tile b / splits) over part b % splits of the columns.
//
// Two producer lanes copy tiles of weight and of rows by TMA into a ring in shared memory. Each of the GROUPS
// warpgroups multiplies 64 outputs with all rows: the weight is the first operand of wgmma, the rows are the second
// one, so that a product takes as long for 8 rows as for 64. The weight is read from shared memory; fp8 is converted to
// float16 in registers, which is exact. The sums do not depend on the number of rows.
//
// Weights do not depend on the kernel before: their lane begins while that one still runs, as soon as it leaves a
// multiprocessor, and fills the ring. It keeps IN_FLIGHT copies in flight and no more: what kernels read of each
// other's results would wait behind them. The lane of the rows waits for the kernel before; when it has requested its
// last rows, the next kernel may start.

#include "layout.cuh"  // constants, from executors/cuda/skinny_gemm.py
#include "wgmma.cuh"

#define TILE_ROW_BYTES 128  // of the weight, in shared memory
#define TILE_COLUMNS (TILE_ROW_BYTES / (WEIGHT_FP8 ? 1 : 2))
#define WEIGHT_BYTES (GROUPS * 64 * TILE_ROW_BYTES)
#define ROWS_BYTES (ROWS * 128)  // 64 columns of the rows
#define STAGE_BYTES (WEIGHT_BYTES + TILE_COLUMNS / 64 * ROWS_BYTES)
#define STEPS (TILE_COLUMNS / 16)  // products of a tile
static_assert(RING_AT >= 24 * STAGES && RING_AT % 1024 == 0, "barriers before the ring");
static_assert(IN_FLIGHT >= 1 && IN_FLIGHT <= STAGES, "a barrier is awaited before its next use");
static_assert(ROWS % 8 == 0 && ROWS <= 64, "rows of a product");

struct Gemm {
  const TensorMap &weight, &x;
  u32 base, tile, first, count;  // barriers in shared memory; tile of outputs; tiles of columns

  __device__ __forceinline__ u32 has_weight(u32 stage) const { return base + 24 * stage; }
  __device__ __forceinline__ u32 has_rows(u32 stage) const { return base + 24 * stage + 8; }
  __device__ __forceinline__ u32 empty(u32 stage) const { return base + 24 * stage + 16; }
  __device__ __forceinline__ u32 ring(u32 stage) const { return base + RING_AT + stage * STAGE_BYTES; }

  __device__ __forceinline__ void copy_weight(u32 i, u32 stage) const {
    bar_expect(has_weight(stage), WEIGHT_BYTES);
    int column = (first + i) * TILE_COLUMNS;
#if GATED  // eight gates and their ups follow each other
    copy_tensor(ring(stage), weight, has_weight(stage), EVICT_FIRST, column, 0, 0, tile * GROUPS * 4);
#else
    copy_tensor(ring(stage), weight, has_weight(stage), EVICT_FIRST, column, tile * GROUPS * 64);
#endif
  }
  __device__ __forceinline__ void copy_rows(u32 i, u32 stage) const {
    bar_expect(has_rows(stage), STAGE_BYTES - WEIGHT_BYTES);
#pragma unroll
    for (u32 part = 0; part < TILE_COLUMNS / 64; ++part)
      copy_tensor(ring(stage) + WEIGHT_BYTES + part * ROWS_BYTES, x, has_rows(stage), EVICT_LAST,
                  (first + i) * TILE_COLUMNS + part * 64, 0);
  }

  // One lane each.
  __device__ __forceinline__ void produce_weights() const {
    for (u32 i = 0; i < count; ++i) {
      if (i >= IN_FLIGHT) bar_wait(has_weight((i - IN_FLIGHT) % STAGES), (i - IN_FLIGHT) / STAGES % 2);
      if (i >= STAGES) bar_wait(empty(i % STAGES), (i / STAGES - 1) % 2);
      copy_weight(i, i % STAGES);
    }
  }
  __device__ __forceinline__ void produce_rows() const {
    wait_for_kernel_before();
    for (u32 i = 0; i < count; ++i) {
      if (i >= STAGES) bar_wait(empty(i % STAGES), (i / STAGES - 1) % 2);
      copy_rows(i, i % STAGES);
    }
    start_next_kernel();
  }

  __device__ __forceinline__ void consume(float (&sums)[ROWS / 2], u32 warp, u32 lane) const {
    u32 stage = 0, parity = 0;
    for (u32 i = 0; i < count; ++i) {
      bar_wait(has_rows(stage), parity);
      bar_wait(has_weight(stage), parity);
      u64 rows = tile_descriptor(ring(stage) + WEIGHT_BYTES);
#if WEIGHT_FP8
      u32 g = lane / 4, t = lane % 4, from = ring(stage) + (warp * 16 + g) * TILE_ROW_BYTES + 2 * t;
      u32 a[STEPS][4];
#pragma unroll
      for (u32 k = 0; k < STEPS; ++k)
#pragma unroll
        for (u32 part = 0; part < 4; ++part)  // outputs g and g + 8, then 8 columns further
          a[k][part] =
              two_e4m3_to_f16(load_shared_u16(from + part % 2 * 8 * TILE_ROW_BYTES + (k ^ g) * 16 + part / 2 * 8));
      wgmma_fence();
#pragma unroll
      for (u32 k = 0; k < STEPS; ++k) wgmma<ROWS>(sums, a[k], rows + k / 4 * (ROWS_BYTES >> 4) + 2 * (k % 4));
      wgmma_commit();
      wgmma_wait<0>();
      if (lane == 0) bar_arrive(empty(stage));
#else
      u64 weights = tile_descriptor(ring(stage) + warp / 4 * 64 * TILE_ROW_BYTES);
      wgmma_fence();
#pragma unroll
      for (u32 k = 0; k < STEPS; ++k) wgmma<ROWS>(sums, weights + 2 * k, rows + 2 * k);
      wgmma_commit();
      wgmma_wait<1>();  // the tile before is multiplied
      if (i > 0 && lane == 0) bar_arrive(empty(stage == 0 ? STAGES - 1 : stage - 1));
#endif
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
    wgmma_wait<0>();
  }
};

__device__ __forceinline__ float scale_of(const float* scale, u32 output) {
#if WEIGHT_FP8
  return __ldg(scale + output);
#else
  return 1.0f;
#endif
}

// Lane 4 g + t has outputs g and g + 8 of the 16 of its slab, which are a gate and its up if GATED, and rows 8 j + 2 t
// and the next one.
__device__ __forceinline__ void store(const float (&sums)[ROWS / 2], const float* scale, void* out, u32 outputs,
                                      u32 split, u32 slab, u32 lane) {
  u32 g = lane / 4, t = lane % 4;
#if GATED
  u32 width = outputs / 2, output = slab * 8 + g;
  if (output >= width) return;
  float of_gate = scale_of(scale, output), of_up = scale_of(scale, width + output);
  u16* to = (u16*)out + output;
#pragma unroll
  for (int j = 0; j < ROWS / 8; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float gate = of_gate * sums[4 * j + i], up = of_up * sums[4 * j + 2 + i];
      float gated = gate / (1.0f + __expf(-gate)) * up;
      to[(u64)(8 * j + 2 * t + i) * width] = WEIGHT_FP8 ? to_f16_saturated(gated) : to_bf16(gated);
    }
#else
  u32 output = slab * 16 + g;
  bool has_first = output < outputs, has_second = output + 8 < outputs;
  float first = has_first ? scale_of(scale, output) : 0.0f, second = has_second ? scale_of(scale, output + 8) : 0.0f;
  float* to = (float*)out + (u64)split * CAPACITY * outputs + output;
#pragma unroll
  for (int j = 0; j < ROWS / 8; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      u64 row = (u64)(8 * j + 2 * t + i) * outputs;
      if (has_first) to[row] = first * sums[4 * j + i];
      if (has_second) to[row + 8] = second * sums[4 * j + 2 + i];
    }
#endif
}

extern "C" __global__ void __launch_bounds__(128 * GROUPS + 64, 1)
    skinny_gemm(const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap x, const float* scale,
                void* out, u32 outputs, u32 columns, u32 splits) {
  extern __shared__ char memory[];
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = blockIdx.x % splits, tiles = columns / TILE_COLUMNS;
  u32 first = split * tiles / splits, last = (split + 1) * tiles / splits;
  Gemm gemm{weight, x, (shared_address(memory) + 1023) & ~1023u, blockIdx.x / splits, first, last - first};
  if (threadIdx.x < STAGES) {
    bar_init(gemm.has_weight(threadIdx.x), 1);
    bar_init(gemm.has_rows(threadIdx.x), 1);
    bar_init(gemm.empty(threadIdx.x), 4 * GROUPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp >= 4 * GROUPS) {
    if (lane == 0) warp == 4 * GROUPS ? gemm.produce_weights() : gemm.produce_rows();
    return;
  }
  wait_for_kernel_before();
  float sums[ROWS / 2] = {};
  gemm.consume(sums, warp, lane);
  store(sums, scale, out, outputs, split, gemm.tile * GROUPS * 4 + warp, lane);
}
