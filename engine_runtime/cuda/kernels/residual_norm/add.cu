// The residual and the norm between two products of a step of several rows.
//
// In: a row of the residual stream in bf16, partial sums [splits, CAPACITY, WIDTH] in float32, the weights of a norm. Out:
// x = source + sums, in bf16; rms_norm(x) * weights, in the dtype of the next product. A block computes a row.
//
// The weights of the next product are copied meanwhile, and what is read here waits behind them: so a thread requests all
// that it reads at once.

#include "layout.cuh"  // constants, from executors/cuda/residual_norm.py
#include "bf16x4.cuh"

#define THREADS (WIDTH / 8)
#define WARPS (THREADS / 32)
static_assert(WIDTH % (8 * 32) == 0 && THREADS <= 1024, "a thread has two groups of four columns");

// index: row i is row index[i] of source and of the sums (an embedding table, or the last rows). target: x is written
// there; kept: and to row kept_row[i] of it, unless that is negative. norm: its weights. applied: what each row is
// multiplied by. Each of them may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_and_norm(const u16* source, const long long* index, const float* partial, u32 splits, u16* target, u16* kept,
                 const long long* kept_row, const u16* norm, u16* out, u32 row_format, float* applied) {
  __shared__ float squares_of_warps[WARPS];
  u32 row = blockIdx.x, columns[2] = {4 * threadIdx.x, WIDTH / 2 + 4 * threadIdx.x};
  start_next_kernel();
  float4 x[2], weights[2], sums[MAX_SPLITS][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) weights[i] = norm ? load_bf16x4(norm + columns[i]) : make_float4(0, 0, 0, 0);
  wait_for_kernel_before();
  u64 from_row = index ? (u64)index[row] : row;
#pragma unroll
  for (int i = 0; i < 2; ++i) x[i] = load_bf16x4(source + from_row * WIDTH + columns[i]);
#pragma unroll
  for (u32 split = 0; split < MAX_SPLITS; ++split)
    if (split < splits)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        sums[split][i] = *(const float4*)(partial + (split * CAPACITY + from_row) * WIDTH + columns[i]);
  float squares = 0.0f;
  long long kept_at = kept ? kept_row[row] : -1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (u32 split = 0; split < MAX_SPLITS; ++split)
      if (split < splits) x[i] = sum_of(x[i], sums[split][i]);
    x[i] = rounded(x[i]);
    if (target) store_bf16x4(target + (u64)row * WIDTH + columns[i], x[i]);
    if (kept_at >= 0) store_bf16x4(kept + kept_at * WIDTH + columns[i], x[i]);
    squares += squares_of(x[i]);
  }
  if (!norm) return;  // all threads
#pragma unroll
  for (int s = 16; s; s >>= 1) squares += __shfl_xor_sync(~0u, squares, s);
  if (threadIdx.x % 32 == 0) squares_of_warps[threadIdx.x / 32] = squares;
  __syncthreads();
  squares = 0.0f;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) squares += squares_of_warps[warp];
  float rms = rsqrtf(squares / WIDTH + EPS);
  if (applied && threadIdx.x == 0) applied[row] = rms;
#pragma unroll
  for (int i = 0; i < 2; ++i) store_normed(out + (u64)row * WIDTH, columns[i], row_format, x[i], rms, weights[i]);
}
