// What a block attends to at a time: one group of rows, KV head and partition of the rows in the pool.

#pragma once

#include "primitives.cuh"

#define BLOCKS_AT 4  // words of a plan before blocks
#define PLANNED_BLOCKS (32 - BLOCKS_AT)

// What is planned for a group and partition, without blocks.
struct alignas(16) Planned {
  int position;  // of the group's first row; negative: there are no rows, and nothing else is planned
  u32 rows;      // in a byte each: the group's first row, first new row of the sequence, number of rows, partitions
  u32 tiles;     // of the rows that are in the pool before the step: the first one, and in the upper half where they end
  u32 table;     // offset of the sequence's blocks in the block tables
};

// From plan.cu. The lanes of a warp read it in one load.
struct UnitPlan {
  Planned unit;
  int blocks[PLANNED_BLOCKS];  // of the pool, from that of the first tile on
};
static_assert(sizeof(UnitPlan) == PLAN_BYTES && PLAN_BYTES == 4 * 32, "a word for each lane");
static_assert(sizeof(Planned) == 4 * BLOCKS_AT, "words before blocks");

struct Unit {
  u32 head, group, part, parts;
  u32 row, count, position;  // of the group
  u32 new_row, num_cached;
  u32 first, last, table;  // as in the plan

  __device__ __forceinline__ bool is_empty() const { return part >= parts; }
  __device__ __forceinline__ bool has_new_rows() const { return part + 1 == parts; }
  __device__ __forceinline__ u32 rows_of(u32 tile) const {
    u32 rows = num_cached - tile * TILE_ROWS;
    return rows < TILE_ROWS ? rows : TILE_ROWS;
  }
};
