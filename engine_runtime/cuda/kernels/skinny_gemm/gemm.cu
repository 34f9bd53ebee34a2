// A few rows times a large weight, at the bandwidth of device memory: skinny GEMM.
//
// In: rows [CAPACITY, columns] in bf16, weight [outputs, columns] in bf16; or rows in float16, interleaved, and a weight
// in fp8 with a float32 scale for each output. Block b computes 64 GROUPS outputs (tile b / SPLITS) over part b % SPLITS
// of the columns. Out:
//   not GATED: float32 partial sums [SPLITS, CAPACITY, outputs], one for each part of the columns.
//   GATED: silu(gate) * up [CAPACITY, outputs / 2] in the dtype of the rows; the first half of the weight is the gate.
//
// Two producer lanes copy tiles of weight and of rows by TMA into a ring each in shared memory. Each of the GROUPS
// warpgroups multiplies 64 outputs with all rows: the weight is the first operand of wgmma, the rows are the second
// one. The weight is read from shared memory; fp8 is converted to float16 in registers, which is exact. With two SETS of
// warpgroups one converts while the other multiplies: they take tiles of columns in turn, and their sums are added up at
// last. The sums do not depend on the number of rows.
//
// The rows may be the input of a norm, multiplied by all of it but a factor for each row, since nothing that computed them
// had a whole row: rms_norm(x) * norm @ W^T = (x * norm * r) @ W^T * (1 / rms(x) / r). The product multiplies its sums by
// that factor. r is what the norm before was divided by: with it, x is in the range of float16.
//
// Weights do not depend on the kernel before: their lane begins while that one still runs, as soon as it leaves a
// multiprocessor, and fills its ring. The first copies are the first thing that a block does, before it initializes
// what else it needs. The lane keeps IN_FLIGHT copies in flight and no more: what kernels read of each other's results
// would wait behind them. The lane of the rows waits for the kernel before; when it has requested its last rows, the
// next kernel may start.
//
// Tried on an H100 and an H200 without a gain, so that nobody need try again: rows shared by the two blocks of a cluster
// (multicast), tiles of columns in another order for each block, weights of later products requested into the L2 cache (1 to
// 5 % slower), half a tile converted while the other half is multiplied (1 to 3 % slower), products that add to the residual
// stream themselves, and everything between two attentions as one kernel whose blocks meet at counters (7 to 10 % slower).

#include "layout.cuh"  // constants, from executors/cuda/skinny_gemm.py
#include "tensor_copy.cuh"
#include "wgmma.cuh"

#define TILE_ROW_BYTES 128  // of the weight, in shared memory
#define TILE_COLUMNS (TILE_ROW_BYTES / (WEIGHT_FP8 ? 1 : 2))
#define WEIGHT_BYTES (GROUPS * 64 * TILE_ROW_BYTES)
#define ROWS_BYTES (ROWS * 128)  // 64 columns of the rows
#define ROW_STAGE_BYTES (TILE_COLUMNS / 64 * ROWS_BYTES)
#define STEPS (TILE_COLUMNS / 16)  // products of a tile
#define THREADS (128 * GROUPS)     // of a set of warpgroups
#define AT_SCALED (16 * (STAGES + ROW_STAGES))  // a barrier: the factors of the rows are there
#define AT_FACTORS (AT_SCALED + 8)  // float32 [ROWS]
static_assert(RING_AT >= AT_FACTORS + 4 * ROWS && RING_AT % 1024 == 0, "barriers and factors before the rings");
static_assert(IN_FLIGHT >= 1 && IN_FLIGHT <= STAGES, "a barrier is awaited before its next use");
static_assert(ROWS % 8 == 0 && ROWS <= 64, "rows of a product");
static_assert(WEIGHT_FP8 || (STAGES > 1 && ROW_STAGES > 1), "a tile in bf16 is released when the next one is there");
static_assert(SETS == 1 || (SETS == 2 && WEIGHT_FP8), "sets take tiles in turn, and pass on their sums");
static_assert(STAGES >= 2 * SETS, "stages for the sums of a set");
static_assert(STAGES % SETS == 0 && ROW_STAGES % SETS == 0, "a stage always belongs to the same set");

// The barrier between two sets of warpgroups: the second one arrives, the first one waits.
__device__ __forceinline__ void give_sums() { asm volatile("bar.arrive 2, %0;" ::"n"(2 * THREADS) : "memory"); }
__device__ __forceinline__ void take_sums() { asm volatile("bar.sync 2, %0;" ::"n"(2 * THREADS) : "memory"); }

// The barrier of a warpgroup.
__device__ __forceinline__ void group_sync(u32 group) { asm volatile("bar.sync %0, 128;" ::"r"(3 + group) : "memory"); }

struct Gemm {
  const TensorMap &weight, &x;
  u32 base, tile, first, count;  // barriers in shared memory; tile of outputs; tiles of columns

  __device__ __forceinline__ u32 has_weight(u32 stage) const { return base + 16 * stage; }
  __device__ __forceinline__ u32 used_weight(u32 stage) const { return base + 16 * stage + 8; }
  __device__ __forceinline__ u32 has_rows(u32 stage) const { return base + 16 * (STAGES + stage); }
  __device__ __forceinline__ u32 used_rows(u32 stage) const { return base + 16 * (STAGES + stage) + 8; }
  __device__ __forceinline__ u32 weight_at(u32 stage) const { return base + RING_AT + stage * WEIGHT_BYTES; }
  __device__ __forceinline__ u32 rows_at(u32 stage) const {
    return base + RING_AT + STAGES * WEIGHT_BYTES + stage * ROW_STAGE_BYTES;
  }

  __device__ __forceinline__ void copy_weight(u32 i, u32 stage) const {
    bar_expect(has_weight(stage), WEIGHT_BYTES);
    int column = (first + i) * TILE_COLUMNS;
#if GATED  // eight gates and their ups follow each other
    copy_tensor(weight_at(stage), weight, has_weight(stage), EVICT_FIRST, column, 0, 0, tile * GROUPS * 4);
#else
    copy_tensor(weight_at(stage), weight, has_weight(stage), EVICT_FIRST, column, tile * GROUPS * 64);
#endif
  }
  __device__ __forceinline__ void copy_rows(u32 i, u32 stage) const {
    bar_expect(has_rows(stage), ROW_STAGE_BYTES);
    copy_tensor(rows_at(stage), x, has_rows(stage), EVICT_LAST, 0, 0, (first + i) * (TILE_COLUMNS / 64));
  }

  // The lane of the weights, before the others use barriers.
  __device__ __forceinline__ void begin() const {
#pragma unroll
    // Only the barriers of the first copies: initializing every barrier first delayed the first load by 1.2 us.
    for (u32 i = 0; i < IN_FLIGHT; ++i) bar_init(has_weight(i), 1);
    publish_bars();
#pragma unroll
    for (u32 i = 0; i < IN_FLIGHT; ++i)
      if (i < count) copy_weight(i, i);
    for (u32 i = IN_FLIGHT; i < STAGES; ++i) bar_init(has_weight(i), 1);
    for (u32 i = 0; i < STAGES; ++i) bar_init(used_weight(i), 4 * GROUPS);
    for (u32 i = 0; i < ROW_STAGES; ++i) {
      bar_init(has_rows(i), 1);
      bar_init(used_rows(i), 4 * GROUPS);
    }
    bar_init(base + AT_SCALED, 1);
    publish_bars();
  }
  // One lane each.
  __device__ __forceinline__ void produce_weights() const {
    for (u32 i = IN_FLIGHT; i < count; ++i) {
      // Waits for its own copy, not for its use: more copies in flight would hold up what kernels read of each other.
      bar_wait(has_weight((i - IN_FLIGHT) % STAGES), (i - IN_FLIGHT) / STAGES % 2);
      if (i >= STAGES) bar_wait(used_weight(i % STAGES), (i / STAGES - 1) % 2);
      copy_weight(i, i % STAGES);
    }
  }
  __device__ __forceinline__ void produce_rows() const {
    prefetch_map(x);
    wait_for_kernel_before();
    for (u32 i = 0; i < count; ++i) {
      if (i >= ROW_STAGES) bar_wait(used_rows(i % ROW_STAGES), (i / ROW_STAGES - 1) % 2);
      copy_rows(i, i % ROW_STAGES);
    }
    // NOTE: after the wait above. attend_units starts early and reads what was written before this product; this order
    // makes that complete.
    start_next_kernel();
  }

  // A warp is done with a tile.
  __device__ __forceinline__ void release_weight(u32 i, u32 lane) const {
    if (lane == 0) bar_arrive(used_weight(i % STAGES));
  }
  __device__ __forceinline__ void release_rows(u32 i, u32 lane) const {
    if (lane == 0) bar_arrive(used_rows(i % ROW_STAGES));
  }
#if WEIGHT_FP8
  // Weights of a tile as first operands: of each 16 columns, outputs g and g + 8. All loads are in flight together.
  __device__ __forceinline__ void load_weights(u32 (&a)[STEPS][4], u32 i, u32 warp, u32 lane) const {
    u32 from = weight_at(i % STAGES) + (warp * 16 + lane % 16) * TILE_ROW_BYTES, r[STEPS / 2][4];
#pragma unroll
    for (u32 k = 0; k < STEPS; k += 2) load_matrices(r[k / 2], from + ((k + lane / 16) ^ lane % 8) * 16);
#pragma unroll
    for (u32 k = 0; k < STEPS; k += 2) {
      e4m3_to_f16(r[k / 2][0], a[k][0], a[k][2]);
      e4m3_to_f16(r[k / 2][1], a[k][1], a[k][3]);
      e4m3_to_f16(r[k / 2][2], a[k + 1][0], a[k + 1][2]);
      e4m3_to_f16(r[k / 2][3], a[k + 1][1], a[k + 1][3]);
    }
  }
#endif
  // The sums of the tiles of a set. warp: of the set.
#if WEIGHT_FP8 && ROWS == 8
  // A wgmma would take as long as for 64 rows: each warp computes by itself. The sums are the same, bit by bit.
  __device__ __forceinline__ void consume(float (&sums)[4], u32 set, u32 warp, u32 lane) const {
    for (u32 i = set; i < count; i += SETS) {
      u32 a[STEPS][4], b[STEPS / 2][4], from = rows_at(i % ROW_STAGES) + lane % 8 * 128;
      bar_wait(has_weight(i % STAGES), i / STAGES % 2);
      load_weights(a, i, warp, lane);
      release_weight(i, lane);
      bar_wait(has_rows(i % ROW_STAGES), i / ROW_STAGES % 2);
#pragma unroll
      for (u32 k = 0; k < STEPS; k += 2)
        load_matrices(b[k / 2], from + k / 4 * ROWS_BYTES + ((k % 4 * 2 + lane / 8) ^ lane % 8) * 16);
#pragma unroll
      for (u32 k = 0; k < STEPS; ++k)
        mma_f16(sums, a[k][0], a[k][1], a[k][2], a[k][3], b[k / 2][k % 2 * 2], b[k / 2][k % 2 * 2 + 1]);
      release_rows(i, lane);
    }
  }
#else
  __device__ __forceinline__ void consume(float (&sums)[ROWS / 2], u32 set, u32 warp, u32 lane) const {
    for (u32 i = set; i < count; i += SETS) {
      u64 rows = tile_descriptor(rows_at(i % ROW_STAGES));
      bar_wait(has_weight(i % STAGES), i / STAGES % 2);
#if WEIGHT_FP8
      u32 a[STEPS][4];
      load_weights(a, i, warp, lane);
      release_weight(i, lane);
      bar_wait(has_rows(i % ROW_STAGES), i / ROW_STAGES % 2);
      wgmma_fence();
#pragma unroll
      for (u32 k = 0; k < STEPS; ++k) wgmma<ROWS>(sums, a[k], rows + k / 4 * (ROWS_BYTES >> 4) + 2 * (k % 4));
      wgmma_commit();
      wgmma_wait<0>();
      release_rows(i, lane);
#else
      u64 weights = tile_descriptor(weight_at(i % STAGES) + warp / 4 * 64 * TILE_ROW_BYTES);
      bar_wait(has_rows(i % ROW_STAGES), i / ROW_STAGES % 2);
      wgmma_fence();
#pragma unroll
      for (u32 k = 0; k < STEPS; ++k) wgmma<ROWS>(sums, weights + 2 * k, rows + 2 * k);
      wgmma_commit();
      wgmma_wait<1>();  // the tile before is multiplied
      if (i > 0) {
        release_weight(i - 1, lane);
        release_rows(i - 1, lane);
      }
#endif
    }
    wgmma_wait<0>();
  }
#endif
  // 512 bytes for a warp's sums of the j-th eight rows: its part of stages of its set, whose tiles it has multiplied.
  __device__ __forceinline__ u32 scratch(u32 j, u32 set, u32 warp) const {
    return weight_at(set + j / 4 * SETS) + warp * 16 * TILE_ROW_BYTES + j % 4 * 512;
  }
#if SETS == 2
  // The second set gives its sums to the first one. False: another set has the sums.
  __device__ __forceinline__ bool add_sets(float (&sums)[ROWS / 2], u32 set, u32 warp, u32 lane) const {
    auto place = [&](u32 j) { return scratch(j, 1, warp) + lane * 16; };
    if (set == 1) {
#pragma unroll
      for (u32 j = 0; j < ROWS / 8; ++j)
        store_shared(place(j), make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]));
      give_sums();
      return false;
    }
    take_sums();
#pragma unroll
    for (u32 j = 0; j < ROWS / 8; ++j) {
      uint4 its = load_shared(place(j));
      sums[4 * j] += __uint_as_float(its.x);
      sums[4 * j + 1] += __uint_as_float(its.y);
      sums[4 * j + 2] += __uint_as_float(its.z);
      sums[4 * j + 3] += __uint_as_float(its.w);
    }
    return true;
  }
#endif
};

__device__ __forceinline__ float scale_of(const float* scale, u32 output, u32 outputs) {
#if WEIGHT_FP8
  return output < outputs ? __ldg(scale + output) : 0.0f;
#else
  return 1.0f;
#endif
}

// What the norm of each row still lacks: 1 / rms(x), which is stored, over what the rows are multiplied by already.
// squares [CAPACITY, parts]: the sums of the squares of x. Null: nothing is lacking. One warp.
__device__ __forceinline__ void find_factors(const float* squares, u32 parts, const float* applied, float* whole,
                                             u32 columns, u32 to, u32 lane) {
  for (u32 row = lane; row < ROWS; row += 32) {
    float factor = 1.0f;
    if (squares) {
      const float4* from = (const float4*)(squares + row * parts);
      float sum = 0.0f;
#pragma unroll 8
      for (u32 part = 0; part < parts / 4; ++part) {
        float4 its = from[part];
        sum += (its.x + its.y) + (its.z + its.w);
      }
      float of_norm = rsqrtf(sum / columns + EPS);
      factor = of_norm / applied[row];
      if (blockIdx.x == 0) whole[row] = of_norm;
    }
    store_shared_float(to + 4 * row, factor);
  }
}

// In what follows, lane 4 g + t of a warp has outputs g and g + 8 of the 16 of its slab, a gate and its up if GATED, and
// rows 8 j + 2 t and the next one. Scales are in device memory: they are requested before the sums are there.

// Of outputs g and g + 8.
__device__ __forceinline__ float2 scales_of(const float* scale, u32 outputs, u32 slab, u32 lane) {
  u32 width = GATED ? outputs / 2 : outputs, output = slab * (GATED ? 8 : 16) + lane / 4;
  return make_float2(scale_of(scale, output, width), scale_of(scale, output + (GATED ? width : 8), outputs));
}

#if !GATED
// A lane stores four consecutive outputs of a row at a time: sums pass through shared memory, 64 bytes for each row, of eight
// rows the even ones first. A block does this once, and waits for each instruction: shuffles would be twice as many.
__device__ __forceinline__ void store(const float (&sums)[ROWS / 2], float2 scales, const Gemm& gemm, float* out, u32 outputs,
                                      u32 split, u32 slab, u32 set, u32 warp, u32 lane) {
  u32 g = lane / 4, t = lane % 4;
  u32 of_g = t * 64 + (g / 4 ^ t & 2) * 16 + g % 4 * 4, of_further = of_g ^ 32;  // no bank conflicts
#pragma unroll
  for (u32 j = 0; j < ROWS / 8; ++j) {
    u32 to = gemm.scratch(j, set, warp);
    store_shared_float(to + of_g, scales.x * sums[4 * j]);
    store_shared_float(to + of_g + 256, scales.x * sums[4 * j + 1]);
    store_shared_float(to + of_further, scales.y * sums[4 * j + 2]);
    store_shared_float(to + of_further + 256, scales.y * sums[4 * j + 3]);
  }
  __syncwarp();
  u32 row = lane / 4 % 4 * 2 + lane / 16, output = slab * 16 + (lane % 4 ^ lane / 4 & 2) * 4;
  if (output >= outputs) return;
  float* to = out + ((u64)split * CAPACITY + row) * outputs + output;
#pragma unroll
  for (u32 j = 0; j < ROWS / 8; ++j, to += 8 * outputs) {
    uint4 v = load_shared(gemm.scratch(j, set, warp) + lane * 16);
    float factor = __uint_as_float(load_shared_word(gemm.base + AT_FACTORS + 4 * (8 * j + row)));
    *(float4*)to = make_float4(factor * __uint_as_float(v.x), factor * __uint_as_float(v.y),
                               factor * __uint_as_float(v.z), factor * __uint_as_float(v.w));
  }
}
#else
__device__ __forceinline__ void store(const float (&sums)[ROWS / 2], float2 scales, u32 factors, u16* out, u32 outputs,
                                      u32 slab, u32 lane) {
  u32 g = lane / 4, t = lane % 4, width = outputs / 2, output = slab * 8 + g;
  if (output >= width) return;
  u16* to = out + (WEIGHT_FP8 ? interleaved(output) : output);
#pragma unroll
  for (int j = 0; j < ROWS / 8; ++j) {
    u32 row = 8 * j + 2 * t;
    float2 of_rows = load_shared_floats(factors + 4 * row);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float factor = i ? of_rows.y : of_rows.x;
      float gate = scales.x * factor * sums[4 * j + i], up = scales.y * factor * sums[4 * j + 2 + i];
      float gated = __fdividef(gate, 1.0f + __expf(-gate)) * up;
      to[(u64)(row + i) * width] = WEIGHT_FP8 ? to_f16_saturated(gated) : to_bf16(gated);
    }
  }
}
#endif

extern "C" __global__ void __launch_bounds__(SETS * THREADS + 96, 1)
    skinny_gemm(const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap x, const float* scale,
                void* out, u32 outputs, u32 columns, const float* squares, u32 parts, const float* applied,
                float* whole) {
  extern __shared__ __align__(1024) char memory[];
  // Of lane 0, so that the compiler knows it to be the same in all lanes: descriptors are in uniform registers then.
  u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  u32 split = blockIdx.x % SPLITS, tiles = columns / TILE_COLUMNS;
  u32 first = split * tiles / SPLITS, last = (split + 1) * tiles / SPLITS;
  Gemm gemm{weight, x, shared_address(memory), blockIdx.x / SPLITS, first, last - first};
  u32 set = warp / (THREADS / 32);
  bool is_producer = warp == SETS * THREADS / 32 && lane == 0;
  if (is_producer) gemm.begin();
  __syncthreads();
  if (set >= SETS) {
    if (is_producer) gemm.produce_weights();
    if (warp == SETS * THREADS / 32 + 1 && lane == 0) gemm.produce_rows();
    if (warp == SETS * THREADS / 32 + 2) {
      wait_for_kernel_before();
      find_factors(squares, parts, applied, whole, columns, gemm.base + AT_FACTORS, lane);
      __syncwarp();
      if (lane == 0) bar_arrive(gemm.base + AT_SCALED);
    }
    return;
  }
  warp %= THREADS / 32;
  u32 slab = gemm.tile * GROUPS * 4 + warp;
  float2 scales = scales_of(scale, outputs, slab, lane);
  wait_for_kernel_before();
  float sums[ROWS / 2] = {};
  gemm.consume(sums, set, warp, lane);
#if SETS == 2
  if (!gemm.add_sets(sums, set, warp, lane)) return;
#endif
  bar_wait(gemm.base + AT_SCALED, 0);
#if !GATED
#if !WEIGHT_FP8
  group_sync(warp / 4);  // its products have read the weights that the sums replace
#endif
  store(sums, scales, gemm, (float*)out, outputs, split, slab, set, warp, lane);
#else
  store(sums, scales, gemm.base + AT_FACTORS, (u16*)out, outputs, slab, lane);
#endif
}
