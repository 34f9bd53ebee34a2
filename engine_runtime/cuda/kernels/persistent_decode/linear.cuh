// A row times the weights: producer warps, compute warps, epilogue warp.

#pragma once

#include "base.cuh"

// ---- producer warps

// Each copies a few rows of every tile; one thread issues the copies, so that addresses are uniform in the
// warp.
template <int F>
__device__ void produce_weights(const Op& op, u32 base, u32 ring, u32 number, Producer& producer) {
  const u32 rows = ROWS_PER_PRODUCER;
  u32 bytes = row_bytes<F>(op.columns);
  u32 num_k_tiles = bytes / K_TILE_BYTES;
  for (u32 out_tile = blockIdx.x; out_tile < op.tiles; out_tile += gridDim.x) {
    u32 row = out_tile * TILE_ROWS + number * rows;
    if (op.kind & SILU_GATE) {
      row = out_tile * 8 + number * rows;  // rows 0 to 7 of a tile are gates, 8 to 15 the matching up rows
      if (number * rows >= 8) row += op.extra - 8;
    }
    u64 from = op.weight + (u64)row * bytes;
    // int4: two bytes per group of 64 bytes, in the order of tiles, stages and rows; otherwise four bytes per
    // row
    u64 scale = F == INT4
                    ? op.scale + (u64)out_tile * TILE_ROWS * num_k_tiles * SCALE_BYTES + number * rows * SCALE_BYTES
                    : op.scale + (u64)row * 4;
    const bool per_row = F == FP8 || F == INT8;
    for (u32 k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
      u32 full = producer.acquire_stage(base);
      u32 to = ring + producer.state.stage * STAGE_BYTES + number * rows * ROW_STRIDE;
      bar_expect(full, rows * (K_TILE_BYTES + (F == INT4 ? SCALE_BYTES : per_row && k_tile == 0 ? 4 : 0)));
      if (per_row && k_tile == 0) copy_bulk(to + K_TILE_BYTES, scale, rows * 4, full);
#pragma unroll
      for (u32 r = 0; r < rows; ++r)
        copy_bulk(to + r * ROW_STRIDE, from + (u64)r * bytes + k_tile * K_TILE_BYTES, K_TILE_BYTES, full);
      if (F == INT4) {
        u32 behind = ring + producer.state.stage * STAGE_BYTES + SCALES_AT + number * rows * SCALE_BYTES;
        copy_bulk(behind, scale + k_tile * (TILE_ROWS * SCALE_BYTES), rows * SCALE_BYTES, full);
      }
      producer.state.next();
    }
  }
}

// ---- compute warps

// Load x (times its norm) to shared memory in the layout of FORMAT, with the partial results that scale_of_x
// needs.
template <int F>
__device__ __forceinline__ void load_x(const Op& op, char* shared, const Inputs& in, u32 tid) {
  float* reduce = (float*)(shared + AT_REDUCE);
  bool normed = op.kind & RMS_NORM;
  uint4 norm[NORM_LOADS], raw[X_LOADS];
  if (normed) {
#pragma unroll
    for (int i = 0; i < NORM_LOADS; ++i) {
      u32 at = (i * COMPUTE_THREADS + tid) * 8;
      if (at < op.columns) norm[i] = load_plain((const u16*)op.norm + at);
    }
  }
  bool is_plain = (op.kind & (FROM_EMBEDDING | ADD_RESIDUAL)) == FROM_EMBEDDING;
  u32 flag = in.flag(op.source);
#pragma unroll
  for (int i = 0; i < X_LOADS; ++i) {
    u32 at = (i * COMPUTE_THREADS + tid) * 8;
    raw[i] = make_uint4(0, 0, 0, 0);
    if (is_plain && at < op.columns) raw[i] = load_plain((const char*)op.x + in.embedding_row + 2 * at);
  }
  if (!is_plain) {
    // Issue a few loads together, and repeat only those whose flag is missing.
#pragma unroll
    for (int first = 0; first < X_LOADS; first += LOADS_PER_BATCH) {
      uint4 found[LOADS_PER_BATCH][2] = {};
      u32 missing = 0;
#pragma unroll
      for (int i = 0; i < LOADS_PER_BATCH; ++i)
        if (first + i < X_LOADS && ((first + i) * COMPUTE_THREADS + tid) * 8 < op.columns) missing |= 1 << i;
      u32 polls = 0;
      while (missing) {
        count_poll(polls);
#pragma unroll
        for (int i = 0; i < LOADS_PER_BATCH; ++i) {
          const char* p = (const char*)op.x + 4 * ((first + i) * COMPUTE_THREADS + tid) * 8;
          load_flagged_if(missing >> i & 1, found[i][0], p);
          load_flagged_if(missing >> i & 1, found[i][1], p + 16);
        }
#pragma unroll
        for (int i = 0; i < LOADS_PER_BATCH; ++i) {
          uint4 a = found[i][0], b = found[i][1];
          if (a.y == flag && a.w == flag && b.y == flag && b.w == flag) missing &= ~(1 << i);
        }
      }
#pragma unroll
      for (int i = 0; i < LOADS_PER_BATCH; ++i)
        if (first + i < X_LOADS)
          raw[first + i] = make_uint4(found[i][0].x, found[i][0].z, found[i][1].x, found[i][1].z);
    }
  }
  float squares = 0.0f, largest = 0.0f;
  if (F == NATIVE) {
#pragma unroll
    for (int i = 0; i < X_LOADS; ++i) {
      u32 at = (i * COMPUTE_THREADS + tid) * 8;
      if (at >= op.columns) continue;
      uint4 v = raw[i];
      if (i < NORM_LOADS && normed) {
        u32* words = (u32*)&v;
        const u32* scales = (const u32*)&norm[i < NORM_LOADS ? i : 0];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float a = low_bf16(words[j]), b = high_bf16(words[j]);
          squares += a * a + b * b;
          words[j] = pack_bf16(a * low_bf16(scales[j]), b * high_bf16(scales[j]));
        }
      }
      *(uint4*)(shared + AT_X + 2 * at) = v;
    }
  } else {
    float v[X_LOADS][8];
#pragma unroll
    for (int i = 0; i < X_LOADS; ++i) {
      const u32* words = (const u32*)&raw[i];
      const u32* scales = (const u32*)&norm[i < NORM_LOADS ? i : 0];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float a = low_bf16(words[j]), b = high_bf16(words[j]);
        squares += a * a + b * b;
        if (i < NORM_LOADS && normed) {
          a *= low_bf16(scales[j]);
          b *= high_bf16(scales[j]);
        }
        v[i][2 * j] = a;
        v[i][2 * j + 1] = b;
        largest = fmaxf(largest, fmaxf(fabsf(a), fabsf(b)));
      }
    }
#pragma unroll
    for (int s = 16; s; s >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, s));
    if (tid % 32 == 0) reduce[COMPUTE_WARPS + tid / 32] = largest;
    compute_sync();
    largest = 1e-30f;
#pragma unroll
    for (int w = 0; w < COMPUTE_WARPS; ++w) largest = fmaxf(largest, reduce[COMPUTE_WARPS + w]);
    float inverse = (F == FP8 ? 1.0f : LARGEST_INT16_X) / largest;
#pragma unroll
    for (int i = 0; i < X_LOADS; ++i) {
      u32 at = (i * COMPUTE_THREADS + tid) * 8;
      if (at >= op.columns) continue;
      if (F == FP8) {
        uint4 w;
        w.x = pack_f16(v[i][0] * inverse, v[i][1] * inverse);
        w.y = pack_f16(v[i][2] * inverse, v[i][3] * inverse);
        w.z = pack_f16(v[i][4] * inverse, v[i][5] * inverse);
        w.w = pack_f16(v[i][6] * inverse, v[i][7] * inverse);
        *(uint4*)(shared + AT_X + 2 * at) = w;
      } else {
        u32 high[2] = {0, 0}, low[2] = {0, 0};
        int high_sum = 0, low_sum = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          int fixed = __float2int_rn(v[i][j] * inverse);
          int h = (fixed + 128) >> 8, l = fixed - h * 256;
          high_sum += h;
          low_sum += l;
          high[j / 4] |= (u32)(h & 255) << (8 * (j % 4));
          low[j / 4] |= (u32)(l & 255) << (8 * (j % 4));
        }
        *(uint2*)(shared + AT_X + at) = make_uint2(high[0], high[1]);
        *(uint2*)(shared + AT_X + X_PLANE_BYTES + at) = make_uint2(low[0], low[1]);
        if (F == INT4) {
#pragma unroll
          for (int s = 8; s; s >>= 1) {
            high_sum += __shfl_xor_sync(~0u, high_sum, s);
            low_sum += __shfl_xor_sync(~0u, low_sum, s);
          }
          if (tid % 16 == 0) *(int2*)(shared + AT_X_SUMS + at / 128 * 8) = make_int2(high_sum, low_sum);
        }
      }
    }
  }
#pragma unroll
  for (int s = 16; s; s >>= 1) squares += __shfl_xor_sync(~0u, squares, s);
  if (tid % 32 == 0) reduce[tid / 32] = squares;
  compute_sync();
}

// The factor of an op's sums, after x is loaded.
template <int F>
__device__ __forceinline__ float scale_of_x(const Op& op, const char* shared) {
  const float* reduce = (const float*)(shared + AT_REDUCE);
  float x_scale = 1.0f;
  if (op.kind & RMS_NORM) {
    float squares = 0.0f;
#pragma unroll
    for (int w = 0; w < COMPUTE_WARPS; ++w) squares += reduce[w];
    x_scale = rsqrtf(squares / op.columns + EPS);
  }
  if (F != NATIVE) {
    float largest = 1e-30f;
#pragma unroll
    for (int w = 0; w < COMPUTE_WARPS; ++w) largest = fmaxf(largest, reduce[COMPUTE_WARPS + w]);
    x_scale *= F == FP8 ? largest : largest / LARGEST_INT16_X;
  }
  return x_scale;
}

// One warp's part of a stage, in registers: 64 bytes of each of 16 rows, STEPS times, with the matching x.
#define STEPS (K_TILE_BYTES / COMPUTE_WARPS / 64)  // 2
template <int F>
struct Fragments {
  uint4 a[STEPS], b[STEPS];  // rows g and g + 8
  uint4 x[STEPS][F == NATIVE || F == INT8 ? 1 : 2];
  int2 sums[F == INT4 ? STEPS : 1];
  u32 scales[2];  // int4: of rows g and g + 8, float16, the first step's in the low half
};

template <int F>
__device__ __forceinline__ void load_fragments(Fragments<F>& to, u32 base, u32 stage, u32 k_tile, u32 warp, u32 lane) {
  u32 g = lane / 4, t = lane % 4;
  u32 row = stage + g * ROW_STRIDE;
  u32 x = base + AT_X;
#pragma unroll
  for (int j = 0; j < STEPS; ++j) {
    u32 byte = (warp * STEPS + j) * 64 + t * 16;
    u32 at = k_tile * K_TILE_BYTES + byte;
    to.a[j] = load_shared(row + byte);
    to.b[j] = load_shared(row + 8 * ROW_STRIDE + byte);
    if (F == NATIVE) {
      to.x[j][0] = load_shared(x + at);
    } else if (F == FP8) {
      to.x[j][0] = load_shared(x + 2 * at);
      to.x[j][F == NATIVE || F == INT8 ? 0 : 1] = load_shared(x + 2 * at + 16);
    } else if (F == INT8) {
      to.x[j][0] = load_shared(x + (g & 1) * X_PLANE_BYTES + at);
    } else {
      u32 group = k_tile * (K_TILE_BYTES / 64) + warp * STEPS + j;
      u32 plane = x + (g & 1) * X_PLANE_BYTES + group * 128 + t * 16;
      to.x[j][0] = load_shared(plane);
      to.x[j][F == NATIVE || F == INT8 ? 0 : 1] = load_shared(plane + 64);
      uint2 sums = load_shared_pair(base + AT_X_SUMS + group * 8);
      to.sums[j] = make_int2((int)sums.x, (int)sums.y);
    }
  }
  if (F == INT4) {
    u32 at = stage + SCALES_AT + g * SCALE_BYTES + warp * STEPS * 2;
    to.scales[0] = load_shared_word(at);
    to.scales[1] = load_shared_word(at + 8 * SCALE_BYTES);
  }
}

// `acc` (`int_acc` for int8) holds the sums of rows g and g + 8.
template <int F>
__device__ __forceinline__ void multiply(const Fragments<F>& from, float (&acc)[2][4], int (&int_acc)[2][4]) {
#pragma unroll
  for (int j = 0; j < STEPS; ++j) {
    uint4 a = from.a[j], b = from.b[j], v = from.x[j][0], w = from.x[j][F == NATIVE || F == INT8 ? 0 : 1];
    if (F == NATIVE) {
      mma_bf16(acc[0], a.x, b.x, a.y, b.y, v.x, v.y);
      mma_bf16(acc[1], a.z, b.z, a.w, b.w, v.z, v.w);
    } else if (F == FP8) {
      u32 p[8], q[8];
      e4m3_to_f16(a.x, p[0], p[1]);
      e4m3_to_f16(a.y, p[2], p[3]);
      e4m3_to_f16(a.z, p[4], p[5]);
      e4m3_to_f16(a.w, p[6], p[7]);
      e4m3_to_f16(b.x, q[0], q[1]);
      e4m3_to_f16(b.y, q[2], q[3]);
      e4m3_to_f16(b.z, q[4], q[5]);
      e4m3_to_f16(b.w, q[6], q[7]);
      mma_f16(acc[0], p[0], q[0], p[1], q[1], v.x, v.y);
      mma_f16(acc[1], p[2], q[2], p[3], q[3], v.z, v.w);
      mma_f16(acc[0], p[4], q[4], p[5], q[5], w.x, w.y);
      mma_f16(acc[1], p[6], q[6], p[7], q[7], w.z, w.w);
    } else if (F == INT8) {
      mma_s8(int_acc[0], a.x, b.x, a.y, b.y, v.x, v.y);
      mma_s8(int_acc[1], a.z, b.z, a.w, b.w, v.z, v.w);
    } else {
      const u32 m = 0x0f0f0f0fu;
      int2 sums = from.sums[j];
      int c[4] = {-8 * sums.x, -8 * sums.y, -8 * sums.x, -8 * sums.y}, d[4] = {0, 0, 0, 0};
      mma_u8(c, a.x & m, b.x & m, a.y & m, b.y & m, v.x, v.y);
      mma_u8(d, a.z & m, b.z & m, a.w & m, b.w & m, v.z, v.w);
      mma_u8(c, (a.x >> 4) & m, (b.x >> 4) & m, (a.y >> 4) & m, (b.y >> 4) & m, w.x, w.y);
      mma_u8(d, (a.z >> 4) & m, (b.z >> 4) & m, (a.w >> 4) & m, (b.w >> 4) & m, w.z, w.w);
      acc[0][0] += (float)((c[0] + d[0]) * 256 + c[1] + d[1]) * from_f16((u16)(from.scales[0] >> 16 * j));
      acc[0][2] += (float)((c[2] + d[2]) * 256 + c[3] + d[3]) * from_f16((u16)(from.scales[1] >> 16 * j));
    }
  }
}

template <int F>
__device__ void linear_op(const Op& op, u32 index, char* shared, u32 base, const Inputs& in, u32 tid,
                          PipelineState& state, PipelineState& partials) {
  u32 warp = tid / 32, lane = tid % 32;
  load_x<F>(op, shared, in, tid);
  float x_scale = scale_of_x<F>(op, shared);
  u32 num_k_tiles = row_bytes<F>(op.columns) / K_TILE_BYTES;
  for (u32 out_tile = blockIdx.x; out_tile < op.tiles; out_tile += gridDim.x) {
    float scale = 1.0f;
    float acc[2][4] = {};
    int int_acc[2][4] = {};
    for (u32 k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
      u32 full = base + AT_STAGE_BARRIERS + 16 * state.stage;
      bar_wait(full, state.parity);
      u32 stage = in.ring + state.stage * STAGE_BYTES;
      if ((F == FP8 || F == INT8) && warp == 0 && k_tile == 0) {
        u32 at = stage + lane % TILE_ROWS / ROWS_PER_PRODUCER * ROWS_PER_PRODUCER * ROW_STRIDE + K_TILE_BYTES +
                 lane % ROWS_PER_PRODUCER * 4;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(at));
      }
      Fragments<F> fragments;
      load_fragments<F>(fragments, base, stage, k_tile, warp, lane);
      __syncwarp();
      if (lane == 0) bar_arrive(full + 8);
      state.next();
      multiply<F>(fragments, acc, int_acc);
    }
    float first = acc[0][0] + acc[1][0], second = acc[0][2] + acc[1][2];
    if (F == INT8) {
      first = (float)(int_acc[0][0] + int_acc[1][0]) * 256.0f + (float)(int_acc[0][1] + int_acc[1][1]);
      second = (float)(int_acc[0][2] + int_acc[1][2]) * 256.0f + (float)(int_acc[0][3] + int_acc[1][3]);
    }
    u32 full = base + AT_PARTIAL_BARRIERS + 16 * partials.stage;
    bar_wait(full + 8, partials.parity ^ 1);
    float* mine = (float*)(shared + AT_PARTIALS) + (partials.stage * COMPUTE_WARPS + warp) * TILE_ROWS;
    if (lane % 4 == 0) {
      mine[lane / 4] = first;
      mine[lane / 4 + 8] = second;
    }
    if (warp == 0 && lane < TILE_ROWS)
      ((float*)(shared + AT_FACTORS))[partials.stage * TILE_ROWS + lane] = x_scale * scale;
    __syncwarp();
    if (lane == 0) bar_arrive(full);
    partials.next(PARTIAL_SLOTS);
  }
  compute_sync();  // the next op overwrites x
}

// ---- epilogue warp

// Reduces the sums of the compute warps, and applies the epilogue of the op.
__device__ void linear_epilogue(const Op& op, u32 index, char* shared, u32 base, const Inputs& in, u32 lane,
                                PipelineState& partials) {
  bool gated = op.kind & SILU_GATE;
  for (u32 out_tile = blockIdx.x; out_tile < op.tiles; out_tile += gridDim.x) {
    u32 out_row = out_tile * (gated ? 8 : TILE_ROWS) + lane % TILE_ROWS;
    // Loaded before the sums are ready; this warp wrote it itself (all these ops have the same tiling).
    u16 residual = 0;
    if (op.kind & ADD_RESIDUAL) {
      const char* p = (const char*)op.residual;
      p += op.kind & FROM_EMBEDDING ? in.embedding_row + 2 * out_row : out_row / 2 * 8 + out_row % 2 * 2;
      asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(residual) : "l"(p));
    }
    u32 full = base + AT_PARTIAL_BARRIERS + 16 * partials.stage;
    bar_wait(full, partials.parity);
    const float* from =
        (const float*)(shared + AT_PARTIALS) + partials.stage * COMPUTE_WARPS * TILE_ROWS + lane % TILE_ROWS;
    float all[COMPUTE_WARPS];
#pragma unroll
    for (int w = 0; w < COMPUTE_WARPS; ++w) all[w] = from[w * TILE_ROWS];
    float factor = ((float*)(shared + AT_FACTORS))[partials.stage * TILE_ROWS + lane % TILE_ROWS];
    __syncwarp();
    if (lane == 0) bar_arrive(full + 8);
    partials.next(PARTIAL_SLOTS);
    float sum = ((all[0] + all[1]) + (all[2] + all[3])) + ((all[4] + all[5]) + (all[6] + all[7]));
    sum *= factor;
    float up = __shfl_down_sync(~0u, sum, 8);
    if (gated) sum = up * sum / (1.0f + __expf(-sum));
    sum += from_bf16(residual);
    float right = __shfl_down_sync(~0u, sum, 1);
    u32 pair = pack_bf16(sum, right);
    if (lane < (gated ? 8 : TILE_ROWS)) {
      if (op.kind & FLOAT32_OUT)
        ((float*)op.out)[out_row] = sum;
      else if (lane % 2 == 0)
        store_word((char*)op.out + out_row * 4, pair, in.flag(index));
      if (op.kind & KEEP_TRUNK && lane % 2 == 0) *(u32*)(in.kept_trunk + out_row) = pair;
    }
    __syncwarp();
  }
}
