// Attention of the row over the paged pool.

#if KV_FP8
#define KV_BYTES 1
#else
#define KV_BYTES 2
#endif
#define BLOCK_BYTES ((u64)KV_HEADS * TOKENS * DIM * KV_BYTES)  // K or V of one block; V follows K
#define ROW_BYTES (DIM * KV_BYTES)                             // of K or of V, for one head
#define TILES_A_STAGE 2  // consecutive tiles of 16 rows in a pipeline stage, each K, V
#define TILE_BYTES (TILE_ROWS * ROW_BYTES)

// K of a row for a head; V follows at an offset of BLOCK_BYTES.
__device__ __forceinline__ const char* k_row(const char* pool, const int* table, u32 offset, u32 head, u32 row) {
  u64 block = (u64)(__ldg(table + row / TOKENS) + (int)offset);
  return pool + block * BLOCK_BYTES + ((u64)head * TOKENS + row % TOKENS) * ROW_BYTES;
}

// The split-KV partition of a block: tiles of rows in the pool, for one head.
struct Share {
  u32 head, piece, pieces, first, last;
};

__device__ __forceinline__ Share share_of(u32 old) {
  Share share;
  share.head = blockIdx.x % KV_HEADS;
  share.piece = blockIdx.x / KV_HEADS;
  u32 tiles = (old + TILE_ROWS - 1) / TILE_ROWS, each = (tiles + PIECES - 1) / PIECES;
  share.pieces = tiles == 0 ? 1 : (tiles + each - 1) / each;
  share.first = share.piece * each < tiles ? share.piece * each : tiles;
  share.last = share.first + each < tiles ? share.first + each : tiles;
  return share;
}

__device__ __forceinline__ u32 rows_of(u32 tile, u32 old) {
  return old - tile * TILE_ROWS < TILE_ROWS ? old - tile * TILE_ROWS : TILE_ROWS;
}

// Copy K and V of this block's partition to the ring; each producer warp takes some tiles. Earlier launches
// wrote them.
__device__ void copy_rows(const Phase& phase, u32 base, u32 ring, u32 number, Copier& copier, const char* pool,
                          const int* table, u32 old) {
  if (blockIdx.x >= KV_HEADS * PIECES) return;
  Share share = share_of(old);
  for (u32 first = share.first; first < share.last; first += TILES_A_STAGE) {
    u32 full = copier.wait_for_room(base);
    u32 to = ring + copier.place.stage * STAGE;
    u32 all = 0;
    for (u32 i = number; i < 2 * TILES_A_STAGE; i += COPIERS) {
      u32 tile = first + i / 2;
      all += tile < share.last ? rows_of(tile, old) * ROW_BYTES : 0;
    }
    bar_expect(full, all);
    for (u32 i = number; i < 2 * TILES_A_STAGE; i += COPIERS) {
      u32 tile = first + i / 2;
      if (tile >= share.last) break;
      const char* from = k_row(pool, table, phase.extra, share.head, tile * TILE_ROWS) + i % 2 * BLOCK_BYTES;
      copy_bulk(to + i * TILE_BYTES, (u64)from, rows_of(tile, old) * ROW_BYTES, full);
    }
    copier.place.next();
  }
}

#define K_PARTS (ROW_BYTES / 64)

__device__ __forceinline__ void unpack4_fp8(u32 w, float* v) {
  u32 a, b;
  e4m3_to_f16(w, a, b);
  v[0] = from_f16((u16)a);
  v[1] = from_f16((u16)(a >> 16));
  v[2] = from_f16((u16)b);
  v[3] = from_f16((u16)(b >> 16));
}

struct AttentionShared {
  u16 q[GROUP][Q_STRIDE / 2];  // in the dtype of the product with K: bfloat16, or float16 with fp8
  float wide_q[GROUP][DIM];
  float k[DIM], v[DIM];
  float4 scores[WARPS][16];
  float4 shrink[WARPS];
  float4 top[WARPS], total[WARPS];
  float sums[WARPS][GROUP][DIM];
};

// rms_norm(x) * norm, then RoPE, of one head; a lane holds dims 2 lane, 2 lane + 1 and both plus 64.
__device__ __forceinline__ void turn(const char* x, u32 flag, const u16* norm, const u16* cosine, const u16* sine,
                                     float* out, u32 lane) {
  float weight[4], turns[4], back[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 d = 2 * lane + i % 2 + i / 2 * 64;
    weight[i] = from_bf16(__ldg(norm + d));
    turns[i] = from_bf16(__ldg(cosine + d));
    back[i] = from_bf16(__ldg(sine + d));
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
    out[2 * lane + i % 2 + i / 2 * 64] = rounded((a[i] * turns[i] + a[i ^ 2] * back[i]) * rms);
}

__device__ __forceinline__ float stored(float v) {
#if KV_FP8
  return from_e4m3(to_e4m3(v));
#else
  return v;  // bf16 already
#endif
}

__device__ __forceinline__ float& part(float4& v, int i) { return ((float*)&v)[i]; }

// Scores of a tile with `rows` valid rows, their softmax weights, and the weighted sums of V. tile: its first
// K in the ring. A lane holds dims 4 lane.. of all four heads.
__device__ __forceinline__ void fold(AttentionShared& shared, u32 tile, u32 rows, u32 warp, u32 lane, float (&top)[2],
                                     float (&total)[2], float (&sums)[4][4]) {
  u32 g = lane / 4, t = lane % 4;
  float dot[4] = {};
  u32 q = shared_at(shared.q[g % GROUP]);
#pragma unroll
  for (int j = 0; j < K_PARTS; ++j) {
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
    mma_f16(dot, c[2], d[2], c[3], d[3], v.z, v.w);
    mma_f16(dot, c[4], d[4], c[5], d[5], w.x, w.y);
    mma_f16(dot, c[6], d[6], c[7], d[7], w.z, w.w);
#else
    uint4 v = load_shared(q + j * 64 + t * 16);
    mma_bf16(dot, a.x, b.x, a.y, b.y, v.x, v.y);
    mma_bf16(dot, a.z, b.z, a.w, b.w, v.z, v.w);
#endif
  }
  if (t < 2) {  // columns 4 to 7 repeat the four heads
    ((float2*)&shared.scores[warp][g])[t] = make_float2(dot[0], dot[1]);
    ((float2*)&shared.scores[warp][g + 8])[t] = make_float2(dot[2], dot[3]);
  }
  __syncwarp();
  // A lane holds a row's weights of two heads.
  bool is_there = lane / 2 < rows;
  float2* mine = (float2*)&shared.scores[warp][lane / 2] + lane % 2;
  float2 score = *mine;
  float pair[2] = {score.x * SOFTMAX_SCALE, score.y * SOFTMAX_SCALE}, shrink[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float highest = is_there ? pair[i] : -1e30f;
#pragma unroll
    for (int s = 16; s > 1; s >>= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, s));
    highest = fmaxf(highest, top[i]);
    shrink[i] = __expf(top[i] - highest);
    top[i] = highest;
    float weight = is_there ? __expf(pair[i] - highest) : 0.0f;
    pair[i] = weight;
#pragma unroll
    for (int s = 16; s > 1; s >>= 1) weight += __shfl_xor_sync(~0u, weight, s);
    total[i] = total[i] * shrink[i] + weight;
  }
  *mine = make_float2(pair[0], pair[1]);
  if (lane < 2) ((float2*)&shared.shrink[warp])[lane] = make_float2(shrink[0], shrink[1]);
  __syncwarp();
  float4 less = shared.shrink[warp];
#pragma unroll
  for (int h = 0; h < 4; ++h)
#pragma unroll
    for (int d = 0; d < 4; ++d) sums[h][d] *= part(less, h);
#pragma unroll
  for (int r = 0; r < TILE_ROWS; ++r) {
    if (r >= rows) break;  // padding rows may hold NaN
    float4 weights = shared.scores[warp][r];
    u32 at = tile + TILE_BYTES + r * ROW_BYTES + lane * 4 * KV_BYTES;
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
      for (int d = 0; d < 4; ++d) sums[h][d] += part(weights, h) * v[d];
  }
  __syncwarp();
}

__device__ void attention_phase(const Phase& phase, u32 index, AttentionShared& shared, u32 base, const Inputs& in,
                                u32 tid, Place& place) {
  u32 warp = tid / 32, lane = tid % 32;
  if (blockIdx.x >= KV_HEADS * PIECES) return;
  Share share = share_of(in.position);
  char* heights = in.partial + PIECES * HEADS * DIM * 8;
  u32 flag = in.flag(index);
  if (share.piece < share.pieces) {
    const u16* cosine = in.cosine + (u64)in.position * DIM;
    const u16* sine = in.sine + (u64)in.position * DIM;
    u32 awaited = in.flag(phase.source);
    if (warp < GROUP) {
      float* q = shared.wide_q[warp];
      turn(in.qkv + (share.head * GROUP + warp) * DIM * 4, awaited, (const u16*)phase.scale, cosine, sine, q, lane);
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
    bool is_new = share.piece == 0;  // also handles the new row
    if (is_new && warp == GROUP) {
      turn(in.qkv + (HEADS + share.head) * DIM * 4, awaited, (const u16*)phase.norm, cosine, sine, shared.k, lane);
      char* k = (char*)k_row(in.pool, in.table, phase.extra, share.head, in.position);
      char* v = k + BLOCK_BYTES;
      const char* from = in.qkv + (HEADS + KV_HEADS + share.head) * DIM * 4;
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
          shared.k[d + j] = stored(shared.k[d + j]);
          shared.v[d + j] = stored(values[j]);
        }
      }
    }
    workers_sync();
    float top[2] = {-1e30f, -1e30f}, total[2] = {0.0f, 0.0f}, sums[4][4] = {};
    for (u32 first = share.first; first < share.last; first += TILES_A_STAGE) {
      u32 full = base + AT_BARS + 16 * place.stage, stage = in.ring + place.stage * STAGE;
      bar_wait(full, place.parity);
      u32 mine = (warp + share.first - first) % WARPS;  // this warp's tile of the next WARPS
      if (mine < TILES_A_STAGE && first + mine < share.last)
        fold(shared, stage + mine * 2 * TILE_BYTES, rows_of(first + mine, in.position), warp, lane, top, total, sums);
      __syncwarp();
      if (lane == 0) bar_arrive(full + 8);
      place.next();
    }
    if (lane < 2) {
      ((float2*)&shared.top[warp])[lane] = make_float2(top[0], top[1]);
      ((float2*)&shared.total[warp])[lane] = make_float2(total[0], total[1]);
    }
#pragma unroll
    for (int h = 0; h < 4; ++h)
      *(float4*)&shared.sums[warp][h][4 * lane] = make_float4(sums[h][0], sums[h][1], sums[h][2], sums[h][3]);
    workers_sync();
    // A thread combines two dims of one head.
    u32 h = tid / 64, d = tid % 64 * 2;
    float score = -1e30f;
    if (is_new) {
      const float* q = shared.wide_q[h];
      score = q[d] * shared.k[d] + q[d + 1] * shared.k[d + 1];
#pragma unroll
      for (int s = 16; s; s >>= 1) score += __shfl_xor_sync(~0u, score, s);
      float* halves = (float*)shared.scores;  // partial sums of the two warps of a head
      if (lane == 0) halves[warp] = score;
      workers_sync();
      score = (halves[2 * h] + halves[2 * h + 1]) * SOFTMAX_SCALE;
    }
    float highest = score;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) highest = fmaxf(highest, part(shared.top[w], h));
    float whole = is_new ? __expf(score - highest) : 0.0f;
    float a = is_new ? whole * shared.v[d] : 0.0f, b = is_new ? whole * shared.v[d + 1] : 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      float weight = __expf(part(shared.top[w], h) - highest);
      float2 pair = *(float2*)&shared.sums[w][h][d];
      whole += weight * part(shared.total[w], h);
      a += weight * pair.x;
      b += weight * pair.y;
    }
    u32 at = share.piece * HEADS + share.head * GROUP + h;
    store_flagged(in.partial + (at * DIM + d) * 8, a, b, flag);
    if (d == 0) store_flagged(heights + at * 16, highest, whole, flag);
  }
  // Each block of the head combines the partitions for a slice of the dims: adjacent threads hold the
  // partitions of two dims.
  u32 piece = tid % PIECES, flat = share.piece * (GROUP * DIM / PIECES) + tid / PIECES * 2;
  u32 head = share.head * GROUP + flat / DIM, d = flat % DIM;
  float a = 0.0f, b = 0.0f, highest = -1e30f, whole = 0.0f, mine = -1e30f;
  if (piece < share.pieces) {
    u32 at = piece * HEADS + head;
    uint4 sums = wait_flagged(in.partial + (at * DIM + d) * 8, flag), height = wait_flagged(heights + at * 16, flag);
    a = __uint_as_float(sums.x);
    b = __uint_as_float(sums.z);
    mine = __uint_as_float(height.x);
    whole = __uint_as_float(height.z);
  }
  highest = mine;
#pragma unroll
  for (int s = PIECES / 2; s; s >>= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, s));
  float weight = __expf(mine - highest);
  a *= weight;
  b *= weight;
  whole *= weight;
#pragma unroll
  for (int s = PIECES / 2; s; s >>= 1) {
    a += __shfl_xor_sync(~0u, a, s);
    b += __shfl_xor_sync(~0u, b, s);
    whole += __shfl_xor_sync(~0u, whole, s);
  }
  if (piece == 0) store_word(in.attended + (head * DIM + d) * 4, pack_bf16(a / whole, b / whole), flag);
  workers_sync();  // the next op overwrites the shared memory
}
