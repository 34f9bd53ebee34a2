// Four values of a row in bf16.

#pragma once

#include "primitives.cuh"

__device__ __forceinline__ float4 load_bf16x4(const u16* from) {
  uint2 v = *(const uint2*)from;
  return make_float4(low_bf16(v.x), high_bf16(v.x), low_bf16(v.y), high_bf16(v.y));
}
__device__ __forceinline__ void store_bf16x4(u16* to, float4 v) {
  *(uint2*)to = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
}
// As the residual stream is stored.
__device__ __forceinline__ float4 rounded(float4 v) {
  return make_float4(round_bf16(v.x), round_bf16(v.y), round_bf16(v.z), round_bf16(v.w));
}
__device__ __forceinline__ float4 sum_of(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float squares_of(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }
// x * factor * weights, four columns of a row of the input of a product.
__device__ __forceinline__ void store_normed(u16* row, u32 column, u32 row_format, float4 x, float factor, float4 weights) {
  float4 y = make_float4(x.x * factor * weights.x, x.y * factor * weights.y, x.z * factor * weights.z,
                         x.w * factor * weights.w);
  if (row_format == ROWS_F16_INTERLEAVED) {
    u16* to = row + interleaved(column);
    *(u32*)to = pack_f16_saturated(y.x, y.y);
    *(u32*)(to + 8) = pack_f16_saturated(y.z, y.w);
  } else if (row_format == ROWS_F16)
    *(uint2*)(row + column) = make_uint2(pack_f16_saturated(y.x, y.y), pack_f16_saturated(y.z, y.w));
  else
    store_bf16x4(row + column, y);
}
