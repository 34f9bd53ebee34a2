// Attention of the rows of several sequences over the paged pool, at the bandwidth of device memory.
//
// In: q, k and v of the new rows as partial sums of the projection; K and V of earlier rows are in the pool. Out: the
// heads' outputs, and K and V of the new rows in the pool. A group is 1 to GROUP_ROWS consecutive rows of a sequence; a
// unit is one group, KV head and partition of the rows in the pool, as plan.cu cuts them, so that a row's output depends
// on its own sequence and the number of rows of the step alone. The unit of the last partition adds the new rows of the
// sequence, of which it writes those of its group. Block b attends to units b, b + grid, ...
//
// A producer warp copies the K and V of all units of its block into a ring in shared memory, one tile of 16 rows after
// the other, without a pause between two units; so device memory is read continuously. The first copies are the first
// thing that a block does: plans and rows of the pool are complete then (see Step::plan). The warp waits for free stages;
// until the compute warps have read q, it also keeps no more than IN_FLIGHT copies in flight, behind which those reads
// would wait. Compute warp w attends to tiles w, w + COMPUTE_WARPS, ...
//
// The last block to finish a partition of a group and head combines them. In a launch with clusters, the partitions of a
// group and head are a cluster, with one unit for each block at most. For a group of a single row they are combined by
// all of its blocks: each one combines the values of some warps, which the others store into its shared memory.

#include "layout.cuh"  // constants, from executors/cuda/paged_attention.py
#include "cluster.cuh"
#include "tensor_copy.cuh"
#include "unit.cuh"
#if KV_FP8
#include "plain_tile.cuh"
#else
#include "swizzled_tile.cuh"
#endif

#define COMPUTE_THREADS (32 * COMPUTE_WARPS)
#define STAGE_BYTES (2 * TILE_BYTES)
#define WIDTH ((HEADS + 2 * KV_HEADS) * DIM)
static_assert(DIM == 128 && GROUP == 4 && TOKENS % TILE_ROWS == 0, "sizes that the code is written for");
static_assert(COMPUTE_THREADS == GROUP * DIM / 2, "a thread combines two dims of one head");
static_assert(IN_FLIGHT >= 1 && IN_FLIGHT <= RING_STAGES, "the first copies");
static_assert(RING_STAGES % COMPUTE_WARPS == 0, "a stage always belongs to the same compute warp");
static_assert(GROUP_ROWS % 2 == 0, "rows are attended in pairs");
static_assert(COMPUTE_WARPS == 2 * GROUP_ROWS, "warps prefetch two tables for each row");
static_assert(MAX_NEW_ROWS == TILE_ROWS, "the new rows of a sequence are one tile");
static_assert(RING_AT % 1024 == 0 && STAGE_BYTES % 1024 == 0, "alignment of tiles");

struct Shared {
  char new_tile[STAGE_BYTES];  // K and V of the new rows, as in a stage of the ring
  u64 barriers[RING_STAGES][2];  // full, empty
  char q[GROUP_ROWS][GROUP * Q_STRIDE];
  TileScratch scratch[COMPUTE_WARPS];
  WarpSums sums[COMPUTE_WARPS];
  float4 incoming[COMPUTE_THREADS];  // what blocks of the cluster store: two dims of the sums, maximum, total
  u64 has_incoming, has_read;        // barriers
  u32 is_last;
};
static_assert(sizeof(Shared) <= RING_AT, "shared memory before the ring");

struct Step {
  const TensorMap& tiles;  // of the pool, as its layers follow each other
  const float* qkv;  // [splits, CAPACITY, WIDTH]
  const u16 *q_norm, *k_norm, *cosine, *sine;
  char* pool;
  const int* table;
  const UnitPlan* plans;  // [MAX_PARTS, CAPACITY], of which max_parts are planned
  u32 layer_offset, num_groups, max_parts, splits, ranks;  // ranks: blocks of a cluster

  __device__ __forceinline__ u32 num_units() const { return KV_HEADS * num_groups * max_parts; }
  // Head, group and partition of a unit.
  __device__ __forceinline__ Unit unit(u32 index) const {
    Unit unit;
    unit.part = index & ranks - 1;  // a power of two
    index >>= 31 - __clz(ranks);
    for (u32 heads = KV_HEADS * num_groups; index >= heads; index -= heads) ++unit.part;  // few times: no division
    unit.head = index % KV_HEADS;
    unit.group = index / KV_HEADS;
    return unit;
  }
  // Also before wait_for_kernel_before: this kernel starts when the product before it has waited for all kernels before
  // that one, of which plan.cu is one.
  __device__ __forceinline__ const UnitPlan* plan(u32 index) const {
    Unit its = unit(index);
    return plans + (u64)its.part * CAPACITY + its.group;
  }
  // A unit's plan without its blocks, requested before it is needed; from the L2 cache, since another kernel wrote it.
  __device__ __forceinline__ Planned planned(u32 index) const {
    int4 words = index < num_units() ? __ldcg((const int4*)&plan(index)->unit) : make_int4(-1, 0, 0, 0);
    return Planned{words.x, (u32)words.y, (u32)words.z, (u32)words.w};
  }
  // Fill in what is planned for the unit. False, and it is as before, if there are no rows. Where they are cut in fewer
  // parts than others, some units are empty.
  __device__ __forceinline__ bool take(u32 index, const Planned& planned, Unit& unit) const {
    if (planned.position < 0) return false;
    unit = this->unit(index);
    unit.position = planned.position;
    unit.row = planned.rows & 255;
    unit.new_row = planned.rows >> 8 & 255;
    unit.count = planned.rows >> 16 & 255;
    unit.parts = planned.rows >> 24;
    unit.num_cached = unit.position - (unit.row - unit.new_row);
    unit.first = planned.tiles & 65535;
    unit.last = planned.tiles >> 16;
    unit.table = planned.table;
    return true;
  }
  // The lane's word of a unit's plan.
  __device__ __forceinline__ u32 planned_word(u32 index, u32 lane) const {
    return index < num_units() ? __ldcg((const u32*)plan(index) + lane) : ~0u;
  }
  // Copy K and V of a tile; blocks are counted as in the table. Invalid rows are copied too: they lie in the same block.
  __device__ __forceinline__ void copy_tile(u32 to, u32 bar, int block, u32 head, u32 row) const {
    bar_expect(bar, STAGE_BYTES);
    copy_tensor(to, tiles, bar, EVICT_FIRST, 0, ((block + (int)layer_offset) * KV_HEADS + head) * TOKENS + row % TOKENS,
                0, 0);
  }
  __device__ __forceinline__ int block_of(const Unit& unit, u32 i) const { return __ldg(table + unit.table + i); }
  // K of a row of the pool; V follows at an offset of BLOCK_BYTES.
  __device__ __forceinline__ char* k_row(int block, u32 head, u32 row) const {
    return pool + (u64)(block + (int)layer_offset) * BLOCK_BYTES + ((u64)head * TOKENS + row % TOKENS) * ROW_BYTES;
  }
  // Dims 2 lane, 2 lane + 1 and both plus 64 of a head of q, k or v.
  __device__ __forceinline__ float4 head_of(u32 row, u32 head, u32 lane) const {
    const float* from = qkv + (u64)row * WIDTH + head * DIM + 2 * lane;
    float2 low[MAX_SPLITS], high[MAX_SPLITS];
#pragma unroll
    for (u32 split = 0; split < MAX_SPLITS; ++split) {  // all are requested before the first one is used
      low[split] = high[split] = make_float2(0.0f, 0.0f);
      if (split < splits) {
        low[split] = *(const float2*)from;
        high[split] = *(const float2*)(from + DIM / 2);
      }
      from += (u64)CAPACITY * WIDTH;
    }
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (u32 i = 0; i < MAX_SPLITS; ++i)
      sum = make_float4(sum.x + low[i].x, sum.y + low[i].y, sum.z + high[i].x, sum.w + high[i].y);
    return sum;
  }
  // Bring what `roped` reads for a group into the L1 cache; all compute warps.
  __device__ __forceinline__ void prefetch(const Unit& unit, u32 warp, u32 lane) const {
    u32 row = warp % GROUP_ROWS, line = lane % 2 * 64;  // of 128 bytes
    bool is_first = warp < GROUP_ROWS;
    if (row >= unit.count || lane >= 4) return;
    const u16* of_position = (is_first ? cosine : sine) + (u64)(unit.position + row) * DIM;
    prefetch_line((lane < 2 ? of_position : is_first ? q_norm : k_norm) + line);
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

// Copies K and V of all units of the block into the ring; one warp, whose lane 0 copies. Each lane holds a block of the
// unit's table: lanes from BLOCKS_AT on the first ones, which are in the plan, and then all lanes 32 at a time, which are
// requested before they are needed.
struct Producer {
  const Step& step;
  u32 barriers, ring, lane;
  u32 read;       // barrier at which the compute warps arrive when they have read q of their first unit
  u32 index, word, num_copied;  // the unit, the lane's word of its plan, how many of its tiles are copied

  __device__ __forceinline__ u32 of_plan(u32 i) const { return __shfl_sync(~0u, word, i); }
  __device__ __forceinline__ bool take(Unit& unit) const {
    return step.take(index, Planned{(int)of_plan(0), of_plan(1), of_plan(2), of_plan(3)}, unit);
  }
  __device__ __forceinline__ void copy(u32 stage, int block, u32 head, u32 tile) const {
    step.copy_tile(ring + stage * STAGE_BYTES, barriers + 16 * stage, block, head, tile * TILE_ROWS);
  }
  // Where the plan has the block of one of the first tiles.
  __device__ __forceinline__ u32 block_word(const Unit& unit, u32 i) const {
    return BLOCKS_AT + (unit.first + i) * TILE_ROWS / TOKENS - unit.first * TILE_ROWS / TOKENS;
  }
  // Initialize all barriers, and request the first copies as soon as those that they need are there. The block
  // synchronizes afterwards.
  __device__ __forceinline__ void begin(u32 cluster_bar) {
    index = blockIdx.x;
    word = step.planned_word(index, lane);
    num_copied = 0;
    if (lane == 0) {
#pragma unroll
      for (u32 i = 0; i < RING_STAGES; ++i) bar_init(barriers + 16 * i, 1);
      publish_bars();
    }
    Unit unit;
    if (take(unit))
#pragma unroll 1
      for (; num_copied < IN_FLIGHT && unit.first + num_copied < unit.last; ++num_copied) {
        int block = (int)of_plan(block_word(unit, num_copied));
        if (lane == 0) copy(num_copied, block, unit.head, unit.first + num_copied);
      }
    if (lane == 0) {
#pragma unroll
      for (u32 i = 0; i < RING_STAGES; ++i) bar_init(barriers + 16 * i + 8, 1);
      bar_init(read, COMPUTE_WARPS);
      bar_init(cluster_bar, 1);
      publish_bars();
    }
  }
  // The rest of the first stages: few copies at a time, until the other warps have read what they need.
  __device__ __forceinline__ void fill() {
    Unit unit;
    if (!take(unit)) return;
    u32 tiles = unit.last - unit.first < RING_STAGES ? unit.last - unit.first : RING_STAGES;
    for (; num_copied < tiles; ++num_copied) {
      int block = (int)of_plan(block_word(unit, num_copied));
      if (lane == 0) {
        while (!bar_test(read, 0) && !bar_test(barriers + 16 * (num_copied - IN_FLIGHT), 0));
        copy(num_copied, block, unit.head, unit.first + num_copied);
      }
      __syncwarp();
    }
  }
  // All others.
  __device__ __forceinline__ void run() {
    u32 stage = num_copied % RING_STAGES, parity = num_copied < RING_STAGES;
    for (; index < step.num_units(); index += gridDim.x, num_copied = 0) {
      Unit unit;
      bool has_rows = take(unit);
      u32 next_word = step.planned_word(index + gridDim.x, lane), blocks = word;
      word = next_word;
      if (!has_rows) continue;
      u32 from = unit.first * TILE_ROWS / TOKENS, at = BLOCKS_AT, after = from + PLANNED_BLOCKS;
      u32 end = (unit.last * TILE_ROWS + TOKENS - 1) / TOKENS;
      auto requested = [&](u32 block) { return block + lane < end ? step.block_of(unit, block + lane) : 0; };
      u32 next = requested(after);
      for (u32 tile = unit.first + num_copied; tile < unit.last; ++tile) {
        u32 i = tile * TILE_ROWS / TOKENS - from + at;
        if (i == 32) {
          blocks = next;
          from = after;
          at = i = 0;
          after += 32;
          next = requested(after);
        }
        int block = __shfl_sync(~0u, blocks, i);
        if (lane == 0) {
          bar_wait(barriers + 16 * stage + 8, parity);
          copy(stage, block, unit.head, tile);
        }
        __syncwarp();
        if (++stage == RING_STAGES) {
          stage = 0;
          parity ^= 1;
        }
      }
    }
  }
};
static_assert(RING_STAGES * TILE_ROWS / TOKENS <= PLANNED_BLOCKS, "the blocks of the first copies are in the plan");

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
    char* to = shared.new_tile + is_v * TILE_BYTES;
    store_pair(to + tile_offset(row, 2 * lane), x.x, x.y);
    store_pair(to + tile_offset(row, 2 * lane + DIM / 2), x.z, x.w);
    if (unit.new_row + row < unit.row) continue;  // of another group
    to = step.k_row(step.block_of(unit, position / TOKENS), unit.head, position) + is_v * BLOCK_BYTES;
    store_pair(to + 2 * lane * KV_BYTES, x.x, x.y);
    store_pair(to + ROW_BYTES / 2 + 2 * lane * KV_BYTES, x.z, x.w);
  }
}

__device__ __forceinline__ void store_out(void* out, u32 row_format, u64 at, float a, float b) {
  if (row_format == ROWS_F16_INTERLEAVED) at = (at & ~15ull) | interleaved(at & 15);
  ((u32*)out)[at / 2] = row_format == ROWS_BF16 ? pack_bf16(a, b) : pack_f16_saturated(a, b);
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

// A row whose partitions are in the blocks of a cluster. The block of rank r combines what threads of warps r, r + ranks,
// ... have, two dims of a head each. As each block waits for what is stored into it, it does not end before.
struct Cluster {
  u32 rank, ranks, incoming, bar;  // the last two in shared memory

  // Of a thread of warp `warp`.
  __device__ __forceinline__ u32 place(u32 part, u32 warp, u32 lane) const {
    return incoming + ((part * (COMPUTE_WARPS / ranks) + warp / ranks) * 32 + lane) * sizeof(float4);
  }
  // So many partitions will be stored; one thread, at any time.
  __device__ __forceinline__ void expect(u32 parts) const {
    bar_expect(bar, parts * (COMPUTE_THREADS / ranks) * sizeof(float4));
  }
  __device__ __forceinline__ void send(u32 part, const Combined& of_part, u32 warp, u32 lane) const {
    u32 to = warp % ranks;
    store_async(address_in(to, place(part, warp, lane)),
                make_float4(of_part.a, of_part.b, of_part.highest, of_part.total), address_in(to, bar));
  }
  __device__ __forceinline__ bool combines(u32 warp) const { return warp % ranks == rank; }
  __device__ __forceinline__ Combined combined(u32 parts, u32 warp, u32 lane) const {
    bar_wait_for_cluster(bar, 0);
    uint4 of_part[COMPUTE_WARPS];
    Combined all;
#pragma unroll
    for (u32 p = 0; p < COMPUTE_WARPS; ++p)
      if (p < parts) {
        of_part[p] = load_shared(place(p, warp, lane));
        all.highest = fmaxf(all.highest, __uint_as_float(of_part[p].z));
      }
#pragma unroll
    for (u32 p = 0; p < COMPUTE_WARPS; ++p)
      if (p < parts)
        all.add(__uint_as_float(of_part[p].z), __uint_as_float(of_part[p].w),
                make_float2(__uint_as_float(of_part[p].x), __uint_as_float(of_part[p].y)));
    return all;
  }
};

extern "C" __global__ void __launch_bounds__(COMPUTE_THREADS + 32, 1)
    attend_units(const __grid_constant__ TensorMap tiles, const float* qkv, const u16* q_norm, const u16* k_norm,
                 const u16* cosine, const u16* sine, char* pool, const int* table, const UnitPlan* plans, float* partial,
                 float* tops, float* totals, u32* arrived, void* out, u32 row_format, u32 layer_offset, u32 num_groups,
                 u32 max_parts, u32 splits) {
  extern __shared__ __align__(1024) char memory[];
  Shared& shared = *(Shared*)memory;
  u32 barriers = shared_address(shared.barriers), ring = shared_address(memory) + RING_AT;
  // The warp's index of lane 0, so that the compiler knows it to be the same in all lanes.
  u32 tid = threadIdx.x, warp = __shfl_sync(~0u, tid / 32, 0), lane = tid % 32;
  Cluster cluster{cluster_rank(), cluster_size(), shared_address(shared.incoming), shared_address(&shared.has_incoming)};
  Step step{tiles, qkv,   q_norm,       k_norm,     cosine,    sine,   pool,
            table, plans, layer_offset, num_groups, max_parts, splits, cluster.ranks};
  u32 read = shared_address(&shared.has_read);
  Producer producer{step, barriers, ring, lane, read};
  Planned planned;
  if (warp == COMPUTE_WARPS)
    producer.begin(cluster.bar);
  else
    planned = step.planned(blockIdx.x);
  __syncthreads();
  start_next_kernel();
  if (cluster.ranks > 1) cluster_arrive();
  if (warp == COMPUTE_WARPS) {
    producer.fill();
    producer.run();
    if (cluster.ranks > 1) cluster_wait();
    return;
  }
  if (cluster.ranks > 1) cluster_wait();  // all blocks have initialized their barriers
  Unit unit;
  bool has_rows = step.take(blockIdx.x, planned, unit);
  if (has_rows) step.prefetch(unit, warp, lane);
  wait_for_kernel_before();
  // A block has no other unit then. Those without tiles combine as well.
  bool in_cluster = cluster.ranks > 1 && has_rows && unit.count == 1 && unit.parts > 1;
  if (in_cluster && tid == 0) cluster.expect(unit.parts);
  u32 number = 0;  // of the tiles so far
  bool is_first = true;
  u32 h = tid / (DIM / 2), d = tid % (DIM / 2) * 2;
  for (u32 index = blockIdx.x; index < step.num_units();
       index += gridDim.x, has_rows = step.take(index, planned, unit)) {
    planned = step.planned(index + gridDim.x);
    if (!has_rows || unit.is_empty()) continue;
    begin(step, unit, shared, warp, lane);
    // q, k and v are read: from now on the producer may keep the memory system busy.
    if (lane == 0 && is_first) bar_arrive(read);
    is_first = false;
    compute_sync();
    PairSoftmax softmax[GROUP_ROWS / 2];
    u32 num_tiles = unit.last - unit.first;
    for (u32 i = (warp - number) % COMPUTE_WARPS; i < num_tiles + unit.has_new_rows(); i += COMPUTE_WARPS) {
      bool is_new = i == num_tiles;  // the tile of the new rows, after those of the ring
      u32 use = number + i, stage = use % RING_STAGES, full = barriers + 16 * stage;
      u32 tile = is_new ? shared_address(shared.new_tile) : ring + stage * STAGE_BYTES;
      if (!is_new) bar_wait(full, use / RING_STAGES % 2);
      u32 rows = is_new ? unit.position + 1 - unit.num_cached : unit.rows_of(unit.first + i);
#pragma unroll
      for (u32 row = 0; row < GROUP_ROWS; row += 2)
        if (row < unit.count)
          softmax[row / 2].attend(row + 1 < unit.count, shared_address(shared.q[row]), tile, rows + is_new * row, is_new,
                                  lane, shared.scratch[warp]);
      __syncwarp();
      if (!is_new && lane == 0) bar_arrive(full + 8);
    }
    // Sums are in the order of the tiles, whichever warp has the first one.
#pragma unroll
    for (u32 row = 0; row < GROUP_ROWS; ++row) {
      if (row >= unit.count) continue;
      softmax[row / 2].store((row | 1) < unit.count, row % 2, shared.sums[(warp - number) % COMPUTE_WARPS], lane);
      compute_sync();
      Combined warps;
#pragma unroll
      for (int w = 0; w < COMPUTE_WARPS; ++w) warps.highest = fmaxf(warps.highest, part(shared.sums[w].top, h));
#pragma unroll
      for (int w = 0; w < COMPUTE_WARPS; ++w) {
        WarpSums& of_warp = shared.sums[w];
        warps.add(part(of_warp.top, h), part(of_warp.total, h), *(float2*)&of_warp.sums[h][d]);
      }
      u64 at = (u64)(unit.row + row) * HEADS + unit.head * GROUP + h;
      if (unit.parts == 1) {
        store_out(out, row_format, at * DIM + d, warps.a / warps.total, warps.b / warps.total);
      } else if (row == 0 && in_cluster) {
        cluster.send(unit.part, warps, warp, lane);
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
    number += num_tiles;
    if (unit.parts == 1 || in_cluster) continue;
    if (tid == 0) {
      u32* counter = arrived + unit.group * KV_HEADS + unit.head;
      __threadfence();
      // Between two fences: the sums of this block come before its count, and those of the others after it.
      shared.is_last = atomicAdd(counter, 1) + 1 == unit.parts;
      __threadfence();
      // Reset for the next kernel: no memset between the layers. Only the last block is left to touch it.
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
        store_out(out, row_format, at * DIM + d, all.a / all.total, all.b / all.total);
      }
    }
    compute_sync();  // is_last
  }
  if (in_cluster && cluster.combines(warp)) {
    Combined all = cluster.combined(unit.parts, warp, lane);
    store_out(out, row_format, ((u64)unit.row * HEADS + unit.head * GROUP + h) * DIM + d, all.a / all.total,
              all.b / all.total);
  }
}
