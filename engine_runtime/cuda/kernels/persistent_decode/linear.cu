// A row times the weights: producer warps, compute warps, epilogue warp.

// ---- producer warps

// Each copies a few rows of every tile; one thread issues the copies, so that addresses are uniform in the
// warp.
template <int F>
__device__ void copy_phase(const Phase& phase, u32 base, u32 ring, u32 number, Copier& copier) {
  const u32 rows = ROWS_EACH;
  u32 bytes = row_bytes<F>(phase.columns);
  u32 pieces = bytes / PIECE;
  for (u32 block = blockIdx.x; block < phase.blocks; block += gridDim.x) {
    u32 row = block * TILE_ROWS + number * rows;
    if (phase.kind & GATED) {
      row = block * 8 + number * rows;  // rows 0 to 7 of a tile are gates, 8 to 15 the matching up rows
      if (number * rows >= 8) row += phase.extra - 8;
    }
    u64 from = phase.weight + (u64)row * bytes;
    // int4: two bytes per group of 64 bytes, in the order of tiles, stages and rows; otherwise four bytes per
    // row
    u64 scale = F == INT4 ? phase.scale + (u64)block * TILE_ROWS * pieces * PIECE_SCALES + number * rows * PIECE_SCALES
                          : phase.scale + (u64)row * 4;
    const bool per_row = F == FP8 || F == INT8;
    for (u32 piece = 0; piece < pieces; ++piece) {
      u32 full = copier.wait_for_room(base);
      u32 to = ring + copier.place.stage * STAGE + number * rows * ROW_STRIDE;
      bar_expect(full, rows * (PIECE + (F == INT4 ? PIECE_SCALES : per_row && piece == 0 ? 4 : 0)));
      if (per_row && piece == 0) copy_bulk(to + PIECE, scale, rows * 4, full);
#pragma unroll
      for (u32 r = 0; r < rows; ++r) copy_bulk(to + r * ROW_STRIDE, from + (u64)r * bytes + piece * PIECE, PIECE, full);
      if (F == INT4) {
        u32 behind = ring + copier.place.stage * STAGE + SCALES_BEHIND + number * rows * PIECE_SCALES;
        copy_bulk(behind, scale + piece * (TILE_ROWS * PIECE_SCALES), rows * PIECE_SCALES, full);
      }
      copier.place.next();
    }
  }
}

// ---- compute warps

// Load x (times its norm) to shared memory in the layout of FORMAT, with the partial results that unit_of
// needs.
template <int F>
__device__ __forceinline__ void load_x(const Phase& phase, char* shared, const Inputs& in, u32 tid) {
  float* reduce = (float*)(shared + AT_REDUCE);
  bool normed = phase.kind & NORMED;
  uint4 norm[NORM_LOADS], raw[LOADS];
  if (normed) {
#pragma unroll
    for (int i = 0; i < NORM_LOADS; ++i) {
      u32 at = (i * THREADS + tid) * 8;
      if (at < phase.columns) norm[i] = load_plain((const u16*)phase.norm + at);
    }
  }
  bool is_plain = (phase.kind & (FROM_TABLE | ADDS)) == FROM_TABLE;
  u32 flag = in.flag(phase.source);
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    u32 at = (i * THREADS + tid) * 8;
    raw[i] = make_uint4(0, 0, 0, 0);
    if (is_plain && at < phase.columns) raw[i] = load_plain((const char*)phase.x + in.embedding_row + 2 * at);
  }
  if (!is_plain) {
    // Issue a few loads together, and repeat only those whose flag is missing.
#pragma unroll
    for (int first = 0; first < LOADS; first += TOGETHER) {
      uint4 found[TOGETHER][2] = {};
      u32 missing = 0;
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i)
        if (first + i < LOADS && ((first + i) * THREADS + tid) * 8 < phase.columns) missing |= 1 << i;
      u32 tries = 0;
      while (missing) {
        count_try(tries);
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
          const char* p = (const char*)phase.x + 4 * ((first + i) * THREADS + tid) * 8;
          load_flagged_if(missing >> i & 1, found[i][0], p);
          load_flagged_if(missing >> i & 1, found[i][1], p + 16);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
          uint4 a = found[i][0], b = found[i][1];
          if (a.y == flag && a.w == flag && b.y == flag && b.w == flag) missing &= ~(1 << i);
        }
      }
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i)
        if (first + i < LOADS) raw[first + i] = make_uint4(found[i][0].x, found[i][0].z, found[i][1].x, found[i][1].z);
    }
  }
  float squares = 0.0f, largest = 0.0f;
  if (F == NATIVE) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      u32 at = (i * THREADS + tid) * 8;
      if (at >= phase.columns) continue;
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
    float v[LOADS][8];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
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
    if (tid % 32 == 0) reduce[WARPS + tid / 32] = largest;
    workers_sync();
    largest = 1e-30f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) largest = fmaxf(largest, reduce[WARPS + w]);
    float inverse = (F == FP8 ? 1.0f : LARGEST_WHOLE) / largest;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      u32 at = (i * THREADS + tid) * 8;
      if (at >= phase.columns) continue;
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
          int whole = __float2int_rn(v[i][j] * inverse);
          int h = (whole + 128) >> 8, l = whole - h * 256;
          high_sum += h;
          low_sum += l;
          high[j / 4] |= (u32)(h & 255) << (8 * (j % 4));
          low[j / 4] |= (u32)(l & 255) << (8 * (j % 4));
        }
        *(uint2*)(shared + AT_X + at) = make_uint2(high[0], high[1]);
        *(uint2*)(shared + AT_X + PLANE + at) = make_uint2(low[0], low[1]);
        if (F == INT4) {
#pragma unroll
          for (int s = 8; s; s >>= 1) {
            high_sum += __shfl_xor_sync(~0u, high_sum, s);
            low_sum += __shfl_xor_sync(~0u, low_sum, s);
          }
          if (tid % 16 == 0) *(int2*)(shared + AT_SUMS + at / 128 * 8) = make_int2(high_sum, low_sum);
        }
      }
    }
  }
#pragma unroll
  for (int s = 16; s; s >>= 1) squares += __shfl_xor_sync(~0u, squares, s);
  if (tid % 32 == 0) reduce[tid / 32] = squares;
  workers_sync();
}

// The factor of an op's sums, after x is loaded.
template <int F>
__device__ __forceinline__ float unit_of(const Phase& phase, const char* shared) {
  const float* reduce = (const float*)(shared + AT_REDUCE);
  float unit = 1.0f;
  if (phase.kind & NORMED) {
    float squares = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) squares += reduce[w];
    unit = rsqrtf(squares / phase.columns + EPS);
  }
  if (F != NATIVE) {
    float largest = 1e-30f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) largest = fmaxf(largest, reduce[WARPS + w]);
    unit *= F == FP8 ? largest : largest / LARGEST_WHOLE;
  }
  return unit;
}

// One warp's part of a stage, in registers: 64 bytes of each of 16 rows, STEPS times, with the matching x.
#define STEPS (PIECE / WARPS / 64)  // 2
template <int F>
struct Loaded {
  uint4 a[STEPS], b[STEPS];  // rows g and g + 8
  uint4 x[STEPS][F == NATIVE || F == INT8 ? 1 : 2];
  int2 sums[F == INT4 ? STEPS : 1];
  u32 scales[2];  // int4: of rows g and g + 8, float16, the first step's in the low half
};

template <int F>
__device__ __forceinline__ void load_piece(Loaded<F>& to, u32 base, u32 tile, u32 piece, u32 warp, u32 lane) {
  u32 g = lane / 4, t = lane % 4;
  u32 row = tile + g * ROW_STRIDE;
  u32 x = base + AT_X;
#pragma unroll
  for (int j = 0; j < STEPS; ++j) {
    u32 byte = (warp * STEPS + j) * 64 + t * 16;
    u32 at = piece * PIECE + byte;
    to.a[j] = load_shared(row + byte);
    to.b[j] = load_shared(row + 8 * ROW_STRIDE + byte);
    if (F == NATIVE) {
      to.x[j][0] = load_shared(x + at);
    } else if (F == FP8) {
      to.x[j][0] = load_shared(x + 2 * at);
      to.x[j][F == NATIVE || F == INT8 ? 0 : 1] = load_shared(x + 2 * at + 16);
    } else if (F == INT8) {
      to.x[j][0] = load_shared(x + (g & 1) * PLANE + at);
    } else {
      u32 group = piece * (PIECE / 64) + warp * STEPS + j;
      u32 plane = x + (g & 1) * PLANE + group * 128 + t * 16;
      to.x[j][0] = load_shared(plane);
      to.x[j][F == NATIVE || F == INT8 ? 0 : 1] = load_shared(plane + 64);
      uint2 sums = load_shared_pair(base + AT_SUMS + group * 8);
      to.sums[j] = make_int2((int)sums.x, (int)sums.y);
    }
  }
  if (F == INT4) {
    u32 at = tile + SCALES_BEHIND + g * PIECE_SCALES + warp * STEPS * 2;
    to.scales[0] = load_shared_word(at);
    to.scales[1] = load_shared_word(at + 8 * PIECE_SCALES);
  }
}

// `acc` (`whole` for int8) holds the sums of rows g and g + 8.
template <int F>
__device__ __forceinline__ void multiply(const Loaded<F>& from, float (&acc)[2][4], int (&whole)[2][4]) {
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
      mma_s8(whole[0], a.x, b.x, a.y, b.y, v.x, v.y);
      mma_s8(whole[1], a.z, b.z, a.w, b.w, v.z, v.w);
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
__device__ void linear_phase(const Phase& phase, u32 index, char* shared, u32 base, const Inputs& in, u32 tid,
                             Place& place, Place& parts) {
  u32 warp = tid / 32, lane = tid % 32;
  load_x<F>(phase, shared, in, tid);
  float unit = unit_of<F>(phase, shared);
  u32 pieces = row_bytes<F>(phase.columns) / PIECE;
  for (u32 block = blockIdx.x; block < phase.blocks; block += gridDim.x) {
    float scale = 1.0f;
    float acc[2][4] = {};
    int whole[2][4] = {};
    for (u32 piece = 0; piece < pieces; ++piece) {
      u32 full = base + AT_BARS + 16 * place.stage;
      bar_wait(full, place.parity);
      u32 tile = in.ring + place.stage * STAGE;
      if ((F == FP8 || F == INT8) && warp == 0 && piece == 0) {
        u32 at = tile + lane % TILE_ROWS / ROWS_EACH * ROWS_EACH * ROW_STRIDE + PIECE + lane % ROWS_EACH * 4;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(at));
      }
      Loaded<F> loaded;
      load_piece<F>(loaded, base, tile, piece, warp, lane);
      __syncwarp();
      if (lane == 0) bar_arrive(full + 8);
      place.next();
      multiply<F>(loaded, acc, whole);
    }
    float first = acc[0][0] + acc[1][0], second = acc[0][2] + acc[1][2];
    if (F == INT8) {
      first = (float)(whole[0][0] + whole[1][0]) * 256.0f + (float)(whole[0][1] + whole[1][1]);
      second = (float)(whole[0][2] + whole[1][2]) * 256.0f + (float)(whole[0][3] + whole[1][3]);
    }
    u32 full = base + AT_PARTS_BARS + 16 * parts.stage;
    bar_wait(full + 8, parts.parity ^ 1);
    float* mine = (float*)(shared + AT_PARTS) + (parts.stage * WARPS + warp) * TILE_ROWS;
    if (lane % 4 == 0) {
      mine[lane / 4] = first;
      mine[lane / 4 + 8] = second;
    }
    if (warp == 0 && lane < TILE_ROWS) ((float*)(shared + AT_FACTORS))[parts.stage * TILE_ROWS + lane] = unit * scale;
    __syncwarp();
    if (lane == 0) bar_arrive(full);
    parts.next(NUM_PARTS);
  }
  workers_sync();  // the next op overwrites x
}

// ---- epilogue warp

// Reduces the sums of the compute warps, and applies the epilogue of the op.
__device__ void finish_phase(const Phase& phase, u32 index, char* shared, u32 base, const Inputs& in, u32 lane,
                             Place& parts) {
  bool gated = phase.kind & GATED;
  for (u32 block = blockIdx.x; block < phase.blocks; block += gridDim.x) {
    u32 out_row = block * (gated ? 8 : TILE_ROWS) + lane % TILE_ROWS;
    // Loaded before the sums are ready; this warp wrote it itself (all these ops have the same tiling).
    u16 before = 0;
    if (phase.kind & ADDS) {
      const char* p = (const char*)phase.residual;
      p += phase.kind & FROM_TABLE ? in.embedding_row + 2 * out_row : out_row / 2 * 8 + out_row % 2 * 2;
      asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(before) : "l"(p));
    }
    u32 full = base + AT_PARTS_BARS + 16 * parts.stage;
    bar_wait(full, parts.parity);
    const float* from = (const float*)(shared + AT_PARTS) + parts.stage * WARPS * TILE_ROWS + lane % TILE_ROWS;
    float all[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; ++w) all[w] = from[w * TILE_ROWS];
    float factor = ((float*)(shared + AT_FACTORS))[parts.stage * TILE_ROWS + lane % TILE_ROWS];
    __syncwarp();
    if (lane == 0) bar_arrive(full + 8);
    parts.next(NUM_PARTS);
    float sum = ((all[0] + all[1]) + (all[2] + all[3])) + ((all[4] + all[5]) + (all[6] + all[7]));
    sum *= factor;
    float up = __shfl_down_sync(~0u, sum, 8);
    if (gated) sum = up * sum / (1.0f + __expf(-sum));
    sum += from_bf16(before);
    float right = __shfl_down_sync(~0u, sum, 1);
    u32 pair = pack_bf16(sum, right);
    if (lane < (gated ? 8 : TILE_ROWS)) {
      if (phase.kind & WIDE)
        ((float*)phase.out)[out_row] = sum;
      else if (lane % 2 == 0)
        store_word((char*)phase.out + out_row * 4, pair, in.flag(index));
      if (phase.kind & KEEPS && lane % 2 == 0) *(u32*)(in.keep + out_row) = pair;
    }
    __syncwarp();
  }
}
