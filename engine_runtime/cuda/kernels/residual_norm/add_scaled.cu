// The residual between two products of a step of several rows, with all of the norm but its root mean square.
//
// In: the residual stream in bf16, partial sums [splits, CAPACITY, WIDTH] in float32, the weights of a norm. Out: x += sums,
// in bf16; x * weights * applied, in the dtype of the next product, which multiplies its sums by what the norm still
// lacks; for this the sums of the squares of x, [CAPACITY, PARTS]. A warp has a part of a row, so that no thread waits
// for another one. A block needs few registers, so that it starts beside one of the product before.

#include "layout.cuh"  // constants, from executors/cuda/residual_norm.py
#include "bf16x4.cuh"

#define PARTS (WIDTH / PART_COLUMNS)
static_assert(WIDTH % PART_COLUMNS == 0 && PART_COLUMNS == 8 * 32, "a thread has two groups of four columns");

// applied: what the norm before has multiplied each row by.
extern "C" __global__ void __launch_bounds__(32 * PART_WARPS)
    add_scaled(u16* x, const float* partial, u32 splits, const u16* norm, u16* out, u32 row_format, const float* applied,
               float* squares, u32 rows) {
  u32 index = blockIdx.x * PART_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  u32 row = index / PARTS, part = index % PARTS;
  u32 columns[2] = {part * PART_COLUMNS + 4 * lane, part * PART_COLUMNS + PART_COLUMNS / 2 + 4 * lane};
  start_next_kernel();
  float4 weights[2], its[2], sums[MAX_SPLITS][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) weights[i] = load_bf16x4(norm + columns[i]);
  wait_for_kernel_before();  // the residual is not read before: its registers leave no room beside a product of 64 rows
  if (row >= rows) return;
  float factor = applied[row];
#pragma unroll
  for (int i = 0; i < 2; ++i) its[i] = load_bf16x4(x + (u64)row * WIDTH + columns[i]);
#pragma unroll
  for (u32 split = 0; split < MAX_SPLITS; ++split)
    if (split < splits)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        sums[split][i] = *(const float4*)(partial + (split * CAPACITY + row) * WIDTH + columns[i]);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (u32 split = 0; split < MAX_SPLITS; ++split)
      if (split < splits) its[i] = sum_of(its[i], sums[split][i]);
    its[i] = rounded(its[i]);
    store_bf16x4(x + (u64)row * WIDTH + columns[i], its[i]);
    store_normed(out + (u64)row * WIDTH, columns[i], row_format, its[i], factor, weights[i]);
    sum += squares_of(its[i]);
  }
#pragma unroll
  for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
  if (lane == 0) squares[row * PARTS + part] = sum;
}
