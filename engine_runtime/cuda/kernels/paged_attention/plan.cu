// How a step attends: the units of every group, once for all layers that have the same positions.
//
// In: fields and block tables of BatchInputs; positions in the trunk and in both tails (null: it does not run). Out: plans
// [3, MAX_PARTS, CAPACITY], of max_parts partitions. A block plans one partition of every group. A group that has no rows,
// also since the tail is skipped there, gets a negative position and nothing else.

#include "layout.cuh"  // constants, from executors/cuda/paged_attention.py
#include "unit.cuh"

static_assert(CAPACITY <= 256, "a row is a byte of the plan");
static_assert(MAX_BLOCKS * TOKENS <= 255 * MAX_PART_TILES * TILE_ROWS, "partitions are a byte of it, a tile is two");

extern "C" __global__ void __launch_bounds__(CAPACITY)
    plan_units(const long long* of_trunk, const long long* of_text, const long long* of_audio, const int* table,
               const long long* sequences, const long long* group_rows, const long long* group_counts,
               const long long* group_firsts, UnitPlan* plans, u32 min_parts, u32 max_parts) {
  start_next_kernel();
  wait_for_kernel_before();
  u32 group = threadIdx.x, part = blockIdx.x % max_parts, place = blockIdx.x / max_parts;
  const long long* positions = place == 0 ? of_trunk : place == 1 ? of_text : of_audio;
  if (!positions) return;
  UnitPlan* plan = plans + ((u64)place * MAX_PARTS + part) * CAPACITY + group;
  u32 row = (u32)group_rows[group], count = (u32)group_counts[group], new_row = (u32)group_firsts[group];
  long long position = count ? positions[row] : -1;
  if (position < 0) {
    plan->unit.position = -1;
    return;
  }
  u32 num_cached = (u32)position - (row - new_row), tiles = (num_cached + TILE_ROWS - 1) / TILE_ROWS;
  u32 parts = (tiles + MAX_PART_TILES - 1) / MAX_PART_TILES;
  parts = parts < min_parts ? min_parts : parts;
  u32 each = (tiles + parts - 1) / parts, first = part * each < tiles ? part * each : tiles;
  u32 last = first + each < tiles ? first + each : tiles, of_sequence = (u32)sequences[row] * MAX_BLOCKS;
  parts = tiles == 0 ? 1 : (tiles + each - 1) / each;  // those that are not empty
  plan->unit = Planned{(int)position, row | new_row << 8 | count << 16 | parts << 24, first | last << 16, of_sequence};
  u32 first_block = first * TILE_ROWS / TOKENS;
#pragma unroll
  for (u32 i = 0; i < PLANNED_BLOCKS; ++i)  // __ldg: stores between them hold up no loads
    if ((first_block + i) * TOKENS < last * TILE_ROWS) plan->blocks[i] = __ldg(table + of_sequence + first_block + i);
}
