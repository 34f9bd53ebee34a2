// Softmax attention of a row's query heads, or of those of two rows, to a tile in bf16: both products on tensor cores.
//
// K and V of a tile are two areas each, of 64 dims: 16 rows of 128 bytes, swizzled in groups of eight rows as TMA writes
// them, so that neither the loads of K nor the transposed ones of V (ldmatrix) have bank conflicts. Areas start at
// multiples of 1,024 bytes.
//
// A product has eight columns, for four heads of two rows. Scores [16, 8] = K q^T have the rows of the tile; the weighted
// sums [dims, 8] += V^T P take the weights P as second operand straight from the accumulators of the scores, transposed
// in registers. Weights are split in two numbers in bf16, so that 16 bits of them count: the rounded weight, and what it
// leaves. Both are multiplied with V, one after the other; for a single row at once, with the second part in columns 4
// to 7.

#pragma once

#include "warp_sums.cuh"

#define AREA_ROW_BYTES 128
#define AREA_BYTES (TILE_ROWS * AREA_ROW_BYTES)
static_assert(!KV_FP8 && TILE_ROWS == 16 && DIM == 128 && GROUP == 4, "sizes of the matrix instructions");

// Where a tile has a value of K, or of V.
__device__ __forceinline__ u32 tile_offset(u32 row, u32 dim) {
  return dim / 64 * AREA_BYTES + row * AREA_ROW_BYTES + (dim / 8 % 8 ^ row % 8) * 16 + dim % 8 * 2;
}

// Shared memory of a warp.
struct TileScratch {};

// A warp's running softmax of one row or two. Lane 4 g + t has columns 2 t and 2 t + 1: of these the maxima, and the sums
// of dims 16 m + g (sums[m][0], [1]) and 8 further ([2], [3]).
struct PairSoftmax : SoftmaxTotals {
  float sums[DIM / 16][4] = {};

  // Add the rows of V with these weights, of rows 0 to 7 and 8 to 15. FULL: all rows of the tile are valid. (Others may
  // hold NaN, which a weight of 0 does not remove.)
  template <bool FULL>
  __device__ __forceinline__ void add_weighted(u32 v_tile, u32 rows, u32 lane, u32 first, u32 second) {
    u32 from = v_tile + tile_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8), valid[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      u32 row = lane % 4 * 2 + 8 * i;
      valid[i] = (row < rows ? 0xffffu : 0) | (row + 1 < rows ? 0xffff0000u : 0);
    }
#pragma unroll
    for (int m = 0; m < DIM / 16; ++m) {
      u32 v[4];  // dims g and g + 8 of rows 2 t and 2 t + 1, then of 8 rows further
      load_transposed(v, (from ^ m % 4 * 32) + m / 4 * AREA_BYTES);
      if (!FULL) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] &= valid[i / 2];
      }
      mma_bf16(sums[m], v[0], v[1], v[2], v[3], first, second);
    }
  }

  // Add a tile with `rows` valid rows, and `more` for the second row. q: the heads' rows in shared memory, Q_STRIDE
  // apart; tile: its K, which V follows.
  __device__ __forceinline__ void attend(bool is_pair, u32 q, u32 tile, u32 rows, u32 more, u32 lane, TileScratch&) {
    u32 g = lane / 4, t = lane % 4;
    // Lane t takes 16 bytes of every 32, so that the eight lanes of a load's phase reach all banks.
    u32 k = tile + tile_offset(g, 16 * t);
    q += (is_pair ? g : g % GROUP) * Q_STRIDE + 32 * t;
    float dot[4] = {}, other[4] = {};  // two chains of products
#pragma unroll
    for (int j = 0; j < DIM / 32; ++j) {
      u32 from = (k ^ j % 2 * 16) + j / 2 * AREA_BYTES;
      uint4 a = load_shared(from), b = load_shared(from + 8 * AREA_ROW_BYTES);
      uint4 v = load_shared(q + j / 2 * 128 + j % 2 * 16);
      mma_bf16(dot, a.x, b.x, a.y, b.y, v.x, v.y);
      mma_bf16(other, a.z, b.z, a.w, b.w, v.z, v.w);
    }
    // Columns 4 to 7, of lanes with t >= 2, are those of the second row, or repeat the first one. An invalid row has
    // weight 0.
    more = is_pair ? more : 0;
    u32 of_column = t < 2 ? rows : rows + more;
    float scores[2][2], highest[2];  // of row g and of row g + 8
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scores[0][i] = g < of_column ? (dot[i] + other[i]) * SOFTMAX_SCALE : -1e30f;
      scores[1][i] = g + 8 < of_column ? (dot[2 + i] + other[2 + i]) * SOFTMAX_SCALE : -1e30f;
      highest[i] = fmaxf(scores[0][i], scores[1][i]);
#pragma unroll
      for (int s = 16; s > 2; s >>= 1) highest[i] = fmaxf(highest[i], __shfl_xor_sync(~0u, highest[i], s));
    }
    if (__any_sync(~0u, highest[0] > top[0] || highest[1] > top[1])) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float higher = fmaxf(top[i], highest[i]), rescale = __expf(top[i] - higher);
        top[i] = higher;
        total[i] *= rescale;
#pragma unroll
        for (int m = 0; m < DIM / 16; ++m) {
          sums[m][i] *= rescale;
          sums[m][2 + i] *= rescale;
        }
      }
    }
    u32 rounded[2], left[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float a = __expf(scores[r][0] - top[0]), b = __expf(scores[r][1] - top[1]);
      total[0] += a;
      total[1] += b;
      rounded[r] = pack_bf16(a, b);
      left[r] = pack_bf16(a - low_bf16(rounded[r]), b - high_bf16(rounded[r]));
    }
    bool has_rounded = is_pair || t < 2;
    u32 first = has_rounded ? rounded[0] : left[0], second = has_rounded ? rounded[1] : left[1];
#pragma unroll 1
    for (u32 i = 0;; ++i) {
      first = transposed(first);
      second = transposed(second);
      if (rows >= TILE_ROWS)
        add_weighted<true>(tile + TILE_BYTES, rows, lane, first, second);
      else
        add_weighted<false>(tile + TILE_BYTES, rows + more, lane, first, second);
      if (!is_pair || i == 1) break;
      first = left[0];
      second = left[1];
    }
  }

  // What the warp has of one of the rows.
  __device__ __forceinline__ void store(bool is_pair, u32 row, WarpSums& to, u32 lane) const {
    u32 g = lane / 4, t = lane % 4;
    to.set_totals(*this, 2 * row, lane);
    float* of_heads[2] = {to.sums[t % 2 * 2] + g, to.sums[t % 2 * 2 + 1] + g};
    if (is_pair) {
      if (t / 2 != row) return;
#pragma unroll
      for (int m = 0; m < DIM / 16; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) of_heads[i % 2][16 * m + i / 2 * 8] = sums[m][i];
      return;
    }
    // A lane adds up one half of its sums and of those of lane t ^ 2.
#pragma unroll
    for (int m = 0; m < DIM / 16; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float kept = t < 2 ? sums[m][i] : sums[m][2 + i], sent = t < 2 ? sums[m][2 + i] : sums[m][i];
        of_heads[i][16 * m + t / 2 * 8] = kept + __shfl_xor_sync(~0u, sent, 2);
      }
  }
};
