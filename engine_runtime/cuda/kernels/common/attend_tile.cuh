// Softmax attention of one row's query heads to tiles of 16 rows of the paged pool, which are in shared memory.
//
// Constants of the kernel that includes this: KV_HEADS, TOKENS, DIM, GROUP (query heads per KV head), KV_FP8, TILE_ROWS,
// Q_STRIDE (bytes between the heads of q), SOFTMAX_SCALE.

#pragma once

#include "primitives.cuh"

#define KV_BYTES (KV_FP8 ? 1 : 2)
#define BLOCK_BYTES ((u64)KV_HEADS * TOKENS * DIM * KV_BYTES)  // K or V of one block; V follows K
#define ROW_BYTES (DIM * KV_BYTES)                             // of K or of V, for one head
#define TILE_BYTES (TILE_ROWS * ROW_BYTES)
#define K_STEPS (ROW_BYTES / 64)

__device__ __forceinline__ void unpack4_fp8(u32 w, float* v) {
  u32 a, b;
  e4m3_to_f16(w, a, b);
  v[0] = from_f16((u16)a);
  v[1] = from_f16((u16)(a >> 16));
  v[2] = from_f16((u16)b);
  v[3] = from_f16((u16)(b >> 16));
}

__device__ __forceinline__ float& part(float4& v, int i) { return ((float*)&v)[i]; }

// Of a warp's running softmax of four heads over the tiles that it attends to, lane 4 g + t holds the maxima of heads
// 2 (t % 2) and 2 (t % 2) + 1, and their totals over rows g and g + 8 of the tiles.
struct SoftmaxTotals {
  float top[2] = {-1e30f, -1e30f}, total[2] = {0.0f, 0.0f};

  // Totals over all rows.
  __device__ __forceinline__ float2 all_rows() const {
    float a = total[0], b = total[1];
#pragma unroll
    for (int s = 16; s > 2; s >>= 1) {
      a += __shfl_xor_sync(~0u, a, s);
      b += __shfl_xor_sync(~0u, b, s);
    }
    return make_float2(a, b);
  }
};

// With dims 4 lane.. of the weighted sums of V of all four heads.
struct Softmax : SoftmaxTotals {
  float sums[4][4] = {};
};

// Add the rows of V with these weights. FULL: all rows of the tile are valid. (Others may hold NaN; without the test,
// the loads of all rows are in flight together.)
template <bool FULL>
__device__ __forceinline__ void add_weighted(Softmax& state, u32 v_tile, u32 rows, u32 lane, const float4* weights) {
#pragma unroll
  for (int r = 0; r < TILE_ROWS; ++r) {
    if (!FULL && r >= rows) break;
    float4 of_heads = weights[r];
    u32 at = v_tile + r * ROW_BYTES + lane * 4 * KV_BYTES;
    float v[4];
#if KV_FP8
    unpack4_fp8(load_shared_word(at), v);
#else
    uint2 pairs = load_shared_pair(at);
    v[0] = low_bf16(pairs.x);
    v[1] = high_bf16(pairs.x);
    v[2] = low_bf16(pairs.y);
    v[3] = high_bf16(pairs.y);
#endif
#pragma unroll
    for (int h = 0; h < 4; ++h)
#pragma unroll
      for (int d = 0; d < 4; ++d) state.sums[h][d] += part(of_heads, h) * v[d];
  }
}

// Add a tile with `rows` valid rows. q: the heads' rows in shared memory, Q_STRIDE apart; tile: its K, which V follows;
// weights [TILE_ROWS] and rescale_of_heads [1]: of this warp.
__device__ __forceinline__ void attend_tile(Softmax& state, u32 q, u32 tile, u32 rows, u32 lane, float4* weights,
                                            float4* rescale_of_heads) {
  u32 g = lane / 4, t = lane % 4;
  float dot[4] = {}, other[4] = {};  // two chains of products
  q += g % GROUP * Q_STRIDE;
#pragma unroll
  for (int j = 0; j < K_STEPS; ++j) {
    u32 k = tile + g * ROW_BYTES + j * 64 + t * 16;
    uint4 a = load_shared(k), b = load_shared(k + 8 * ROW_BYTES);
#if KV_FP8
    uint4 v = load_shared(q + j * 128 + t * 32), w = load_shared(q + j * 128 + t * 32 + 16);
    u32 c[8], d[8];
    e4m3_to_f16(a.x, c[0], c[1]);
    e4m3_to_f16(a.y, c[2], c[3]);
    e4m3_to_f16(a.z, c[4], c[5]);
    e4m3_to_f16(a.w, c[6], c[7]);
    e4m3_to_f16(b.x, d[0], d[1]);
    e4m3_to_f16(b.y, d[2], d[3]);
    e4m3_to_f16(b.z, d[4], d[5]);
    e4m3_to_f16(b.w, d[6], d[7]);
    mma_f16(dot, c[0], d[0], c[1], d[1], v.x, v.y);
    mma_f16(other, c[2], d[2], c[3], d[3], v.z, v.w);
    mma_f16(dot, c[4], d[4], c[5], d[5], w.x, w.y);
    mma_f16(other, c[6], d[6], c[7], d[7], w.z, w.w);
#else
    uint4 v = load_shared(q + j * 64 + t * 16);
    mma_bf16(dot, a.x, b.x, a.y, b.y, v.x, v.y);
    mma_bf16(other, a.z, b.z, a.w, b.w, v.z, v.w);
#endif
  }
  // Columns 4 to 7, of lanes with t >= 2, repeat the four heads.
  bool is_valid[2] = {g < rows, g + 8 < rows};
  float pairs[2][2], rescale[2];  // of row g and of row g + 8
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float low = is_valid[0] ? (dot[i] + other[i]) * SOFTMAX_SCALE : -1e30f;
    float high = is_valid[1] ? (dot[2 + i] + other[2 + i]) * SOFTMAX_SCALE : -1e30f;
    float highest = fmaxf(low, high);
#pragma unroll
    for (int s = 16; s > 2; s >>= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, s));
    highest = fmaxf(highest, state.top[i]);
    rescale[i] = __expf(state.top[i] - highest);
    state.top[i] = highest;
    pairs[0][i] = is_valid[0] ? __expf(low - highest) : 0.0f;
    pairs[1][i] = is_valid[1] ? __expf(high - highest) : 0.0f;
    state.total[i] = state.total[i] * rescale[i] + pairs[0][i] + pairs[1][i];
  }
  if (t < 2) {
    ((float2*)&weights[g])[t] = make_float2(pairs[0][0], pairs[0][1]);
    ((float2*)&weights[g + 8])[t] = make_float2(pairs[1][0], pairs[1][1]);
  }
  if (lane < 2) ((float2*)rescale_of_heads)[lane] = make_float2(rescale[0], rescale[1]);
  __syncwarp();
  float4 rescales = *rescale_of_heads;
#pragma unroll
  for (int h = 0; h < 4; ++h)
#pragma unroll
    for (int d = 0; d < 4; ++d) state.sums[h][d] *= part(rescales, h);
  if (rows >= TILE_ROWS)
    add_weighted<true>(state, tile + TILE_BYTES, rows, lane, weights);
  else
    add_weighted<false>(state, tile + TILE_BYTES, rows, lane, weights);
  __syncwarp();
}
