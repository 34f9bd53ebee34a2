// What a compute warp has of a row when it has attended to its tiles.

#pragma once

#include "attend_tile.cuh"

#define SUMS_STRIDE (DIM + 8)  // of the heads; values that a warp stores at a time are in different banks

struct WarpSums {
  float4 top, total;  // of the heads
  float sums[GROUP][SUMS_STRIDE];

  // Lanes first and first + 1 hold those of heads 0 and 1, and of 2 and 3.
  __device__ __forceinline__ void set_totals(const SoftmaxTotals& softmax, u32 first, u32 lane) {
    float2 all_rows = softmax.all_rows();
    if (lane - first < 2) {
      ((float2*)&top)[lane - first] = make_float2(softmax.top[0], softmax.top[1]);
      ((float2*)&total)[lane - first] = all_rows;
    }
  }
};
