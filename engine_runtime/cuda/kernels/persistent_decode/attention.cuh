// Attention of the row over the paged pool.

#pragma once

#include "base.cuh"
#include "attend_tile.cuh"

#define KV_TILES_PER_STAGE 2  // consecutive tiles of 16 rows in a pipeline stage, each K, V

// K of a row for a head; V follows at an offset of BLOCK_BYTES.
__device__ __forceinline__ const char* k_row(const char* pool, const int* table, u32 offset, u32 head, u32 row) {
  u64 block = (u64)(__ldg(table + row / TOKENS) + (int)offset);
  return pool + block * BLOCK_BYTES + ((u64)head * TOKENS + row % TOKENS) * ROW_BYTES;
}

// The split-KV partition of a block: tiles of rows in the pool, for one head.
struct KVSplit {
  u32 head, index, count, first, last;
};

__device__ __forceinline__ KVSplit kv_split_of(u32 past) {
  KVSplit split;
  split.head = blockIdx.x % KV_HEADS;
  split.index = blockIdx.x / KV_HEADS;
  u32 tiles = (past + TILE_ROWS - 1) / TILE_ROWS, each = (tiles + KV_SPLITS - 1) / KV_SPLITS;
  split.count = tiles == 0 ? 1 : (tiles + each - 1) / each;
  split.first = split.index * each < tiles ? split.index * each : tiles;
  split.last = split.first + each < tiles ? split.first + each : tiles;
  return split;
}

__device__ __forceinline__ u32 valid_rows(u32 tile, u32 past) {
  return past - tile * TILE_ROWS < TILE_ROWS ? past - tile * TILE_ROWS : TILE_ROWS;
}

// Copy K and V of this block's partition to the ring; each producer warp takes some tiles. Earlier launches
// wrote them.
__device__ void produce_kv(const Op& op, u32 base, u32 ring, u32 number, Producer& producer, const char* pool,
                           const int* table, u32 past) {
  if (blockIdx.x >= KV_HEADS * KV_SPLITS) return;
  KVSplit split = kv_split_of(past);
  for (u32 first = split.first; first < split.last; first += KV_TILES_PER_STAGE) {
    u32 full = producer.acquire_stage(base);
    u32 to = ring + producer.state.stage * STAGE_BYTES;
    u32 all = 0;
    for (u32 i = number; i < 2 * KV_TILES_PER_STAGE; i += PRODUCER_WARPS) {
      u32 tile = first + i / 2;
      all += tile < split.last ? valid_rows(tile, past) * ROW_BYTES : 0;
    }
    bar_expect(full, all);
    for (u32 i = number; i < 2 * KV_TILES_PER_STAGE; i += PRODUCER_WARPS) {
      u32 tile = first + i / 2;
      if (tile >= split.last) break;
      const char* from = k_row(pool, table, op.extra, split.head, tile * TILE_ROWS) + i % 2 * BLOCK_BYTES;
      copy_bulk(to + i * TILE_BYTES, (u64)from, valid_rows(tile, past) * ROW_BYTES, full);
    }
    producer.state.next();
  }
}

struct AttentionShared {       // in place of x
  u16 q[GROUP][Q_STRIDE / 2];  // in the dtype of the product with K: bfloat16, or float16 with fp8
  float float_q[GROUP][DIM];
  float k[DIM], v[DIM];
  float4 scores[COMPUTE_WARPS][16];
  float4 rescale[COMPUTE_WARPS];
  float4 top[COMPUTE_WARPS], total[COMPUTE_WARPS];
  float sums[COMPUTE_WARPS][GROUP][DIM];
};
static_assert(sizeof(AttentionShared) == ATTENTION_BYTES, "AttentionShared");
static_assert(AT_X + ATTENTION_BYTES <= AT_OPS, "region of x");
static_assert(2 * KV_TILES_PER_STAGE * TILE_BYTES <= STAGE_BYTES, "K and V in a pipeline stage");

// rms_norm(x) * norm, then RoPE, of one head; a lane holds dims 2 lane, 2 lane + 1 and both plus 64.
__device__ __forceinline__ void norm_and_rope(const char* x, u32 flag, const u16* norm, const u16* cosine,
                                              const u16* sine, float* out, u32 lane) {
  float weight[4], cos_value[4], sin_value[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 d = 2 * lane + i % 2 + i / 2 * 64;
    weight[i] = from_bf16(__ldg(norm + d));
    cos_value[i] = from_bf16(__ldg(cosine + d));
    sin_value[i] = from_bf16(__ldg(sine + d));
  }
  u32 low = wait_word(x + 8 * lane, flag), high = wait_word(x + 8 * lane + 256, flag);
  float a[4] = {low_bf16(low), high_bf16(low), low_bf16(high), high_bf16(high)};
  float squares = a[0] * a[0] + a[1] * a[1] + a[2] * a[2] + a[3] * a[3];
#pragma unroll
  for (int s = 16; s; s >>= 1) squares += __shfl_xor_sync(~0u, squares, s);
  float rms = rsqrtf(squares / DIM + EPS);
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] *= weight[i];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    out[2 * lane + i % 2 + i / 2 * 64] = round_bf16((a[i] * cos_value[i] + a[i ^ 2] * sin_value[i]) * rms);
}

__device__ __forceinline__ float as_stored(float v) {
#if KV_FP8
  return from_e4m3(to_e4m3(v));
#else
  return v;  // bf16 already
#endif
}

__device__ void attention_op(const Op& op, u32 index, AttentionShared& shared, u32 base, const Inputs& in, u32 tid,
                             PipelineState& state) {
  u32 warp = tid / 32, lane = tid % 32;
  if (blockIdx.x >= KV_HEADS * KV_SPLITS) return;
  KVSplit split = kv_split_of(in.position);
  char* split_stats = in.split_sums + SPLIT_STATS_AT;
  u32 flag = in.flag(index);
  if (split.index < split.count) {
    const u16* cosine = in.cosine + (u64)in.position * DIM;
    const u16* sine = in.sine + (u64)in.position * DIM;
    u32 awaited = in.flag(op.source);
    if (warp < GROUP) {
      float* q = shared.float_q[warp];
      norm_and_rope(in.qkv + (split.head * GROUP + warp) * DIM * 4, awaited, (const u16*)op.scale, cosine, sine, q,
                    lane);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        u32 d = 2 * lane + 64 * i;
#if KV_FP8
        *(u32*)&shared.q[warp][d] = pack_f16(q[d], q[d + 1]);
#else
        *(u32*)&shared.q[warp][d] = pack_bf16(q[d], q[d + 1]);
#endif
      }
    }
    bool has_new_row = split.index == 0;  // also handles the new row
    if (has_new_row && warp == GROUP) {
      norm_and_rope(in.qkv + (HEADS + split.head) * DIM * 4, awaited, (const u16*)op.norm, cosine, sine, shared.k,
                    lane);
      char* k = (char*)k_row(in.pool, in.table, op.extra, split.head, in.position);
      char* v = k + BLOCK_BYTES;
      const char* from = in.qkv + (HEADS + KV_HEADS + split.head) * DIM * 4;
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        u32 d = 2 * lane + 64 * i;
        u32 pair = wait_word(from + d * 4, awaited);
        float values[2] = {low_bf16(pair), high_bf16(pair)};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#if KV_FP8
          ((u8*)k)[d + j] = to_e4m3(shared.k[d + j]);
          ((u8*)v)[d + j] = to_e4m3(values[j]);
#else
          ((u16*)k)[d + j] = to_bf16(shared.k[d + j]);
          ((u16*)v)[d + j] = to_bf16(values[j]);
#endif
          shared.k[d + j] = as_stored(shared.k[d + j]);
          shared.v[d + j] = as_stored(values[j]);
        }
      }
    }
    compute_sync();
    Softmax softmax;
    for (u32 first = split.first; first < split.last; first += KV_TILES_PER_STAGE) {
      u32 full = base + AT_STAGE_BARRIERS + 16 * state.stage, stage = in.ring + state.stage * STAGE_BYTES;
      bar_wait(full, state.parity);
      u32 mine = (warp + split.first - first) % COMPUTE_WARPS;  // this warp's tile of the next COMPUTE_WARPS
      if (mine < KV_TILES_PER_STAGE && first + mine < split.last)
        attend_tile(softmax, shared_address(shared.q), stage + mine * 2 * TILE_BYTES,
                    valid_rows(first + mine, in.position), lane, shared.scores[warp], &shared.rescale[warp]);
      __syncwarp();
      if (lane == 0) bar_arrive(full + 8);
      state.next();
    }
    float2 totals = softmax.all_rows();
    if (lane < 2) {
      ((float2*)&shared.top[warp])[lane] = make_float2(softmax.top[0], softmax.top[1]);
      ((float2*)&shared.total[warp])[lane] = totals;
    }
#pragma unroll
    for (int h = 0; h < 4; ++h)
    {
      const float(&sums)[4] = softmax.sums[h];
      *(float4*)&shared.sums[warp][h][4 * lane] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
    compute_sync();
    // A thread combines two dims of one head.
    u32 h = tid / 64, d = tid % 64 * 2;
    float score = -1e30f;
    if (has_new_row) {
      const float* q = shared.float_q[h];
      score = q[d] * shared.k[d] + q[d + 1] * shared.k[d + 1];
#pragma unroll
      for (int s = 16; s; s >>= 1) score += __shfl_xor_sync(~0u, score, s);
      float* halves = (float*)shared.scores;  // partial sums of the two warps of a head
      if (lane == 0) halves[warp] = score;
      compute_sync();
      score = (halves[2 * h] + halves[2 * h + 1]) * SOFTMAX_SCALE;
    }
    float highest = score;
#pragma unroll
    for (int w = 0; w < COMPUTE_WARPS; ++w) highest = fmaxf(highest, part(shared.top[w], h));
    float denominator = has_new_row ? __expf(score - highest) : 0.0f;
    float a = has_new_row ? denominator * shared.v[d] : 0.0f, b = has_new_row ? denominator * shared.v[d + 1] : 0.0f;
#pragma unroll
    for (int w = 0; w < COMPUTE_WARPS; ++w) {
      float weight = __expf(part(shared.top[w], h) - highest);
      float2 pair = *(float2*)&shared.sums[w][h][d];
      denominator += weight * part(shared.total[w], h);
      a += weight * pair.x;
      b += weight * pair.y;
    }
    u32 at = split.index * HEADS + split.head * GROUP + h;
    store_flagged(in.split_sums + (at * DIM + d) * 8, a, b, flag);
    if (d == 0) store_flagged(split_stats + at * 16, highest, denominator, flag);
  }
  // Each block of the head combines the partitions for a slice of the dims: adjacent threads hold the
  // partitions of two dims.
  u32 source = tid % KV_SPLITS, flat = split.index * (GROUP * DIM / KV_SPLITS) + tid / KV_SPLITS * 2;
  u32 head = split.head * GROUP + flat / DIM, d = flat % DIM;
  float a = 0.0f, b = 0.0f, highest = -1e30f, denominator = 0.0f, mine = -1e30f;
  if (source < split.count) {
    u32 at = source * HEADS + head;
    uint4 sums = wait_flagged(in.split_sums + (at * DIM + d) * 8, flag),
          stats = wait_flagged(split_stats + at * 16, flag);
    a = __uint_as_float(sums.x);
    b = __uint_as_float(sums.z);
    mine = __uint_as_float(stats.x);
    denominator = __uint_as_float(stats.z);
  }
  highest = mine;
#pragma unroll
  for (int s = KV_SPLITS / 2; s; s >>= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, s));
  float weight = __expf(mine - highest);
  a *= weight;
  b *= weight;
  denominator *= weight;
#pragma unroll
  for (int s = KV_SPLITS / 2; s; s >>= 1) {
    a += __shfl_xor_sync(~0u, a, s);
    b += __shfl_xor_sync(~0u, b, s);
    denominator += __shfl_xor_sync(~0u, denominator, s);
  }
  if (source == 0) store_word(in.attended + (head * DIM + d) * 4, pack_bf16(a / denominator, b / denominator), flag);
  compute_sync();  // the next op overwrites the shared memory
}
