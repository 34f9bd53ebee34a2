// Softmax attention of a row's query heads, or of those of two rows, to a tile in fp8, whose rows follow each other: one
// row after the other, as attend_tile.cuh has it.

#pragma once

#include "warp_sums.cuh"

static_assert(KV_FP8, "bf16 has tiles of its own");

// Where a tile has a value of K, or of V.
__device__ __forceinline__ u32 tile_offset(u32 row, u32 dim) { return row * ROW_BYTES + dim * KV_BYTES; }

// Shared memory of a warp.
struct TileScratch {
  float4 weights[TILE_ROWS], rescale;
};

// A warp's running softmax of one row or two.
struct PairSoftmax {
  Softmax rows_of_pair[2];

  // Add a tile with `rows` valid rows, and `more` for the second row. q: the heads' rows in shared memory, Q_STRIDE
  // apart; tile: its K, which V follows.
  __device__ __forceinline__ void attend(bool is_pair, u32 q, u32 tile, u32 rows, u32 more, u32 lane,
                                         TileScratch& scratch) {
    attend_tile(rows_of_pair[0], q, tile, rows, lane, scratch.weights, &scratch.rescale);
    if (is_pair)
      attend_tile(rows_of_pair[1], q + GROUP * Q_STRIDE, tile, rows + more, lane, scratch.weights, &scratch.rescale);
  }
  // What the warp has of one of the rows.
  __device__ __forceinline__ void store(bool is_pair, u32 row, WarpSums& to, u32 lane) const {
    const Softmax& softmax = row == 0 ? rows_of_pair[0] : rows_of_pair[1];
    to.set_totals(softmax, 0, lane);
#pragma unroll
    for (int h = 0; h < GROUP; ++h)
      *(float4*)&to.sums[h][4 * lane] =
          make_float4(softmax.sums[h][0], softmax.sums[h][1], softmax.sums[h][2], softmax.sums[h][3]);
  }
};
