// Attention of the rows of several sequences over the paged pool, at the bandwidth of device memory.
//
// In: q, k and v of the new rows as partial sums of the projection; K and V of earlier rows are in the pool. Out: the
// heads' outputs, and K and V of the new rows in the pool. A group is 1 to GROUP_ROWS consecutive rows of a sequence; a
// unit is one group, KV head and partition of the rows in the pool, so that a row's output depends on its own sequence
// and the number of rows of the step alone. The unit of the last partition adds the new rows of the sequence, of which
// it writes those of its group. Block b attends to units b, b + grid, ...
//
// A producer lane copies the K and V of all units of its block into a ring in shared memory, one tile of 16 rows after
// the other. It waits for free stages only, across units, and starts while the kernel before still runs, since that one
// does not write the pool; so device memory is read continuously. Compute warp w attends to tiles w, w + COMPUTE_WARPS,
// ... The last block to finish a partition of a group and head combines them.

#include "layout.cuh"  // constants, from executors/cuda/paged_attention.py
#include "primitives.cuh"
#include "attend_tile.cuh"

#define COMPUTE_THREADS (32 * COMPUTE_WARPS)
#define STAGE_BYTES (2 * TILE_BYTES)
#define WIDTH ((HEADS + 2 * KV_HEADS) * DIM)
static_assert(DIM == 128 && GROUP == 4 && TOKENS % TILE_ROWS == 0, "sizes that the code is written for");
static_assert(COMPUTE_THREADS == GROUP * DIM / 2, "a thread combines two dims of one head");
static_assert(RING_STAGES % COMPUTE_WARPS == 0, "a stage always belongs to the same compute warp");
static_assert(MAX_NEW_ROWS == TILE_ROWS, "the new rows of a sequence are one tile");

struct Shared {
  char new_tile[STAGE_BYTES];  // K and V of the new rows, as stored
  u64 barriers[RING_STAGES][2];  // full, empty
  char q[GROUP_ROWS][GROUP * Q_STRIDE];
  float4 weights[COMPUTE_WARPS][TILE_ROWS], rescale[COMPUTE_WARPS], top[COMPUTE_WARPS], total[COMPUTE_WARPS];
  float sums[COMPUTE_WARPS][GROUP][DIM];
  u32 is_last;
};
static_assert(sizeof(Shared) <= RING_AT, "shared memory before the ring");

// What a block attends to at a time.
struct Unit {
  u32 head, group, part, parts;  // parts: partitions of this group
  u32 row, count, position;      // of the group's first row
  u32 new_row, num_cached;       // first new row of the sequence; rows that are in the pool before the step
  u32 first, last;               // tiles of those
  const int* table;

  __device__ __forceinline__ bool has_new_rows() const { return part + 1 == parts; }
  __device__ __forceinline__ u32 rows_of(u32 tile) const {
    u32 rows = num_cached - tile * TILE_ROWS;
    return rows < TILE_ROWS ? rows : TILE_ROWS;
  }
};

struct Step {
  const float* qkv;  // [splits, CAPACITY, WIDTH]
  const u16 *q_norm, *k_norm, *cosine, *sine;
  char* pool;
  const int* table;
  const long long *positions, *sequences, *group_rows, *group_counts, *group_firsts;
  u32 layer_offset, num_groups, min_parts, max_parts, splits;

  __device__ __forceinline__ u32 num_units() const { return KV_HEADS * num_groups * max_parts; }
  // False if there is nothing to do for this index.
  __device__ __forceinline__ bool unit(u32 index, Unit& unit) const {
    unit.head = index % KV_HEADS;
    unit.group = index / KV_HEADS % num_groups;
    unit.part = index / KV_HEADS / num_groups;
    unit.count = (u32)__ldg(group_counts + unit.group);
    unit.row = (u32)__ldg(group_rows + unit.group);
    unit.new_row = (u32)__ldg(group_firsts + unit.group);
    long long position = __ldg(positions + unit.row);
    if (unit.count == 0 || position < 0) return false;
    unit.position = (u32)position;
    unit.num_cached = unit.position - (unit.row - unit.new_row);
    u32 tiles = (unit.num_cached + TILE_ROWS - 1) / TILE_ROWS;
    u32 parts = (tiles + MAX_PART_TILES - 1) / MAX_PART_TILES;
    parts = parts < min_parts ? min_parts : parts;
    u32 each = (tiles + parts - 1) / parts;
    unit.parts = tiles == 0 ? 1 : (tiles + each - 1) / each;
    if (unit.part >= unit.parts) return false;
    unit.first = unit.part * each;
    unit.last = unit.first + each < tiles ? unit.first + each : tiles;
    unit.table = table + (u32)__ldg(sequences + unit.row) * MAX_BLOCKS;
    return true;
  }
  // K of a row of the pool; V follows at an offset of BLOCK_BYTES.
  __device__ __forceinline__ char* k_row(int block, u32 head, u32 row) const {
    return pool + (u64)(block + (int)layer_offset) * BLOCK_BYTES + ((u64)head * TOKENS + row % TOKENS) * ROW_BYTES;
  }
  // Dims 2 lane, 2 lane + 1 and both plus 64 of a head of q, k or v.
  __device__ __forceinline__ float4 head_of(u32 row, u32 head, u32 lane) const {
    const float* from = qkv + (u64)row * WIDTH + head * DIM + 2 * lane;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (u32 split = 0; split < splits; ++split) {
      float2 low = *(const float2*)from, high = *(const float2*)(from + DIM / 2);
      sum = make_float4(sum.x + low.x, sum.y + low.y, sum.z + high.x, sum.w + high.y);
      from += (u64)CAPACITY * WIDTH;
    }
    return sum;
  }
  // rms_norm(x) * norm, then RoPE; the sign of the rotation is in the sine.
  __device__ __forceinline__ float4 roped(float4 x, const u16* norm, u32 position, u32 lane) const {
    float squares = x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
#pragma unroll
    for (int s = 16; s; s >>= 1) squares += __shfl_xor_sync(~0u, squares, s);
    float rms = rsqrtf(squares / DIM + EPS);
    float a[4] = {x.x, x.y, x.z, x.w}, out[4];
    const u16 *cos_row = cosine + (u64)position * DIM, *sin_row = sine + (u64)position * DIM;
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] *= from_bf16(__ldg(norm + 2 * lane + i % 2 + i / 2 * (DIM / 2)));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 d = 2 * lane + i % 2 + i / 2 * (DIM / 2);
      out[i] = round_bf16((a[i] * from_bf16(__ldg(cos_row + d)) + a[i ^ 2] * from_bf16(__ldg(sin_row + d))) * rms);
    }
    return make_float4(out[0], out[1], out[2], out[3]);
  }
};

__device__ __forceinline__ void compute_sync() { asm volatile("bar.sync 1, %0;" ::"n"(COMPUTE_THREADS) : "memory"); }

// Copy K and V of all units of the block into the ring; one lane.
__device__ void produce(const Step& step, u32 barriers, u32 ring) {
  u32 stage = 0, parity = 1;
  for (u32 index = blockIdx.x; index < step.num_units(); index += gridDim.x) {
    Unit unit;
    if (!step.unit(index, unit)) continue;
    int block = unit.first < unit.last ? __ldg(unit.table + unit.first * TILE_ROWS / TOKENS) : 0;
    for (u32 tile = unit.first; tile < unit.last; ++tile) {
      u32 bytes = unit.rows_of(tile) * ROW_BYTES, full = barriers + 16 * stage, to = ring + stage * STAGE_BYTES;
      u64 k = (u64)step.k_row(block, unit.head, tile * TILE_ROWS);
      if (tile + 1 < unit.last) block = __ldg(unit.table + (tile + 1) * TILE_ROWS / TOKENS);
      bar_wait(full + 8, parity);
      bar_expect(full, 2 * bytes);
      copy_bulk(to, k, bytes, full);
      copy_bulk(to + TILE_BYTES, k + BLOCK_BYTES, bytes, full);
      if (++stage == RING_STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

// Two values of q, as the tensor cores multiply them with K.
__device__ __forceinline__ u32 pack_q(float a, float b) { return KV_FP8 ? pack_f16(a, b) : pack_bf16(a, b); }

// Two values of K or V, as stored.
__device__ __forceinline__ void store_pair(char* to, float a, float b) {
#if KV_FP8
  *(u16*)to = (u16)(to_e4m3(round_bf16(a)) | to_e4m3(round_bf16(b)) << 8);
#else
  *(u32*)to = pack_bf16(a, b);
#endif
}

// q of the group and, for the last partition, K and V of the new rows of its sequence: into shared memory, and those of
// the group into the pool. A warp takes a head of a row at a time.
__device__ __forceinline__ void begin(const Step& step, const Unit& unit, Shared& shared, u32 warp, u32 lane) {
  for (u32 i = warp; i < unit.count * GROUP; i += COMPUTE_WARPS) {
    u32 row = i / GROUP, head = i % GROUP;
    float4 q = step.head_of(unit.row + row, unit.head * GROUP + head, lane);
    q = step.roped(q, step.q_norm, unit.position + row, lane);
    u32* to = (u32*)(shared.q[row] + head * Q_STRIDE) + lane;
    to[0] = pack_q(q.x, q.y);
    to[DIM / 4] = pack_q(q.z, q.w);
  }
  if (!unit.has_new_rows()) return;
  u32 num_new = unit.position + unit.count - unit.num_cached;
  for (u32 i = COMPUTE_WARPS - 1 - warp; i < 2 * num_new; i += COMPUTE_WARPS) {
    u32 row = i / 2, is_v = i % 2, position = unit.num_cached + row;
    float4 x = step.head_of(unit.new_row + row, HEADS + is_v * KV_HEADS + unit.head, lane);
    if (!is_v) x = step.roped(x, step.k_norm, position, lane);
    char* to = shared.new_tile + is_v * TILE_BYTES + row * ROW_BYTES + 2 * lane * KV_BYTES;
    store_pair(to, x.x, x.y);
    store_pair(to + ROW_BYTES / 2, x.z, x.w);
    if (unit.new_row + row < unit.row) continue;  // of another group
    to = step.k_row(__ldg(unit.table + position / TOKENS), unit.head, position) + is_v * BLOCK_BYTES;
    store_pair(to + 2 * lane * KV_BYTES, x.x, x.y);
    store_pair(to + ROW_BYTES / 2 + 2 * lane * KV_BYTES, x.z, x.w);
  }
}

__device__ __forceinline__ void store_out(void* out, u32 is_f16, u64 at, float a, float b) {
  if (is_f16)
    ((u32*)out)[at / 2] = pack_f16_saturated(a, b);
  else
    ((u32*)out)[at / 2] = pack_bf16(a, b);
}

// Two dims of one head: the weighted sums, and what they are divided by.
struct Combined {
  float highest = -1e30f, total = 0.0f, a = 0.0f, b = 0.0f;
  __device__ __forceinline__ void add(float top, float its_total, float2 sums) {
    float weight = __expf(top - highest);
    total += weight * its_total;
    a += weight * sums.x;
    b += weight * sums.y;
  }
};

extern "C" __global__ void __launch_bounds__(COMPUTE_THREADS + 32, 1)
    attend_units(const float* qkv, const u16* q_norm, const u16* k_norm, const u16* cosine, const u16* sine, char* pool,
                 const int* table, const long long* positions, const long long* sequences, const long long* group_rows,
                 const long long* group_counts, const long long* group_firsts, float* partial, float* tops,
                 float* totals, u32* arrived, void* out, u32 is_f16, u32 layer_offset, u32 num_groups, u32 min_parts, u32 max_parts,
                 u32 splits) {
  extern __shared__ __align__(128) char memory[];
  Shared& shared = *(Shared*)memory;
  u32 barriers = shared_address(shared.barriers), ring = shared_address(memory) + RING_AT;
  u32 tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  Step step{qkv,        q_norm,       k_norm,       cosine,       sine,       pool,      table,     positions, sequences,
            group_rows, group_counts, group_firsts, layer_offset, num_groups, min_parts, max_parts, splits};
  start_next_kernel();
  if (tid < RING_STAGES) {
    bar_init(barriers + 16 * tid, 1);
    bar_init(barriers + 16 * tid + 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp == COMPUTE_WARPS) {
    if (lane == 0) produce(step, barriers, ring);
    return;
  }
  wait_for_kernel_before();
  u32 number = 0;  // of the tiles so far
  u32 h = tid / (DIM / 2), d = tid % (DIM / 2) * 2;
  for (u32 index = blockIdx.x; index < step.num_units(); index += gridDim.x) {
    Unit unit;
    if (!step.unit(index, unit)) continue;
    begin(step, unit, shared, warp, lane);
    compute_sync();
    Softmax softmax[GROUP_ROWS];
    u32 tiles = unit.last - unit.first;
    for (u32 i = (warp - number) % COMPUTE_WARPS; i < tiles; i += COMPUTE_WARPS) {
      u32 use = number + i, stage = use % RING_STAGES, full = barriers + 16 * stage;
      bar_wait(full, use / RING_STAGES % 2);
#pragma unroll
      for (u32 row = 0; row < GROUP_ROWS; ++row)
        if (row < unit.count)
          attend_tile(softmax[row], shared_address(shared.q[row]), ring + stage * STAGE_BYTES,
                      unit.rows_of(unit.first + i), lane, shared.weights[warp], &shared.rescale[warp]);
      if (lane == 0) bar_arrive(full + 8);
    }
    number += tiles;
    if (unit.has_new_rows() && number % COMPUTE_WARPS == warp) {
#pragma unroll
      for (u32 row = 0; row < GROUP_ROWS; ++row)
        if (row < unit.count)
          attend_tile(softmax[row], shared_address(shared.q[row]), shared_address(shared.new_tile),
                      unit.position + row + 1 - unit.num_cached, lane, shared.weights[warp], &shared.rescale[warp]);
    }
#pragma unroll
    for (u32 row = 0; row < GROUP_ROWS; ++row) {
      if (row >= unit.count) continue;
      const Softmax& mine = softmax[row];
      float2 all_rows = mine.all_rows();
      if (lane < 2) {
        ((float2*)&shared.top[warp])[lane] = make_float2(mine.top[0], mine.top[1]);
        ((float2*)&shared.total[warp])[lane] = all_rows;
      }
#pragma unroll
      for (int i = 0; i < GROUP; ++i)
        *(float4*)&shared.sums[warp][i][4 * lane] =
            make_float4(mine.sums[i][0], mine.sums[i][1], mine.sums[i][2], mine.sums[i][3]);
      compute_sync();
      Combined warps;
#pragma unroll
      for (int w = 0; w < COMPUTE_WARPS; ++w) warps.highest = fmaxf(warps.highest, part(shared.top[w], h));
#pragma unroll
      for (int w = 0; w < COMPUTE_WARPS; ++w)
        warps.add(part(shared.top[w], h), part(shared.total[w], h), *(float2*)&shared.sums[w][h][d]);
      u64 at = (u64)(unit.row + row) * HEADS + unit.head * GROUP + h;
      if (unit.parts == 1) {
        store_out(out, is_f16, at * DIM + d, warps.a / warps.total, warps.b / warps.total);
      } else {
        u64 of_part = (u64)unit.part * CAPACITY * HEADS + at;
        *(float2*)(partial + of_part * DIM + d) = make_float2(warps.a, warps.b);
        if (d == 0) {
          tops[of_part] = warps.highest;
          totals[of_part] = warps.total;
        }
      }
      compute_sync();  // what is in shared memory is overwritten next
    }
    if (unit.parts == 1) continue;
    if (tid == 0) {
      u32* counter = arrived + unit.group * KV_HEADS + unit.head;
      __threadfence();
      shared.is_last = atomicAdd(counter, 1) + 1 == unit.parts;
      __threadfence();
      if (shared.is_last) *counter = 0;
    }
    compute_sync();
    if (shared.is_last) {
      for (u32 row = 0; row < unit.count; ++row) {
        u64 at = (u64)(unit.row + row) * HEADS + unit.head * GROUP + h;
        Combined all;
        for (u32 p = 0; p < unit.parts; ++p)
          all.highest = fmaxf(all.highest, __ldcg(tops + (u64)p * CAPACITY * HEADS + at));
        for (u32 p = 0; p < unit.parts; ++p) {
          u64 of_part = (u64)p * CAPACITY * HEADS + at;
          all.add(__ldcg(tops + of_part), __ldcg(totals + of_part), __ldcg((const float2*)(partial + of_part * DIM + d)));
        }
        store_out(out, is_f16, at * DIM + d, all.a / all.total, all.b / all.total);
      }
    }
    compute_sync();  // is_last
  }
}
