// The kernel: warp roles and the loop over the op list.
//
// ops: struct Op [num_records], the last one empty. token, position, trunk_row: of the row. trunk: kept outputs
// [rows, HIDDEN]. qkv, attended, split_sums: flagged buffers. counters: launch number (from 1), finished blocks.

#include "attention.cuh"
#include "linear.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    persistent_decode(const uint4* ops, const long long* token, const long long* position, const long long* trunk_row,
                      const int* table, char* pool, const u16* cosine, const u16* sine, u16* trunk, char* qkv,
                      char* attended, char* split_sums, u32* counters, int num_records) {
  extern __shared__ __align__(128) char shared[];
  u32 base = shared_address(shared), tid = threadIdx.x;
  for (u32 i = tid; i < num_records * (sizeof(Op) / 16); i += blockDim.x)
    ((uint4*)(shared + AT_OPS))[i] = __ldg(ops + i);
  if (tid == 0) {
    for (u32 i = 0; i < STAGES; ++i) {
      bar_init(base + AT_STAGE_BARRIERS + 16 * i, PRODUCER_WARPS);
      bar_init(base + AT_STAGE_BARRIERS + 16 * i + 8, COMPUTE_WARPS);
    }
    for (u32 i = 0; i < PARTIAL_SLOTS; ++i) {
      bar_init(base + AT_PARTIAL_BARRIERS + 16 * i, COMPUTE_WARPS);
      bar_init(base + AT_PARTIAL_BARRIERS + 16 * i + 8, 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const Op* list = (const Op*)(shared + AT_OPS);
  u32 ring = base + AT_RING;
  const u32 num_ops = num_records - 1;
  if (tid >= COMPUTE_THREADS + 32) {
    // One lane issues the copies of its warp. The others may leave: no producer code synchronizes the warp.
    if (tid % 32) return;
    u32 number = tid / 32 - COMPUTE_WARPS - 1;
    Producer producer;
    for (u32 i = 0; i < num_ops; ++i) {
      const Op& op = list[i];
      if (op.kind & ATTENTION)
        produce_kv(op, base, ring, number, producer, pool, table, (u32)*position);
      else if (FORMAT != NATIVE && op.kind & QUANTIZED)
        produce_weights<FORMAT>(op, base, ring, number, producer);
      else
        produce_weights<NATIVE>(op, base, ring, number, producer);
    }
    return;
  }
  Inputs in = {table,
               pool,
               cosine,
               sine,
               (u64)*token * (2 * HIDDEN),
               (u32)*position,
               // volatile: the last block of the launch before wrote it. With a cached number, flags of an earlier
               // launch would match and stale rows be taken for new ones.
               *(volatile u32*)(counters + LAUNCH_COUNTER),
               trunk + (u64)*trunk_row * HIDDEN,
               qkv,
               attended,
               split_sums,
               ring};
  PipelineState state, partials;
  if (tid >= COMPUTE_THREADS) {
    for (u32 i = 0; i < num_ops; ++i)
      if (!(list[i].kind & ATTENTION)) linear_epilogue(list[i], i, shared, base, in, tid % 32, partials);
    return;
  }
  for (u32 index = 0; index < num_ops; ++index) {
    const Op& op = list[index];
    if (op.kind & ATTENTION)
      attention_op(op, index, *(AttentionShared*)(shared + AT_X), base, in, tid, state);
    else if (FORMAT != NATIVE && op.kind & QUANTIZED)
      linear_op<FORMAT>(op, index, shared, base, in, tid, state, partials);
    else
      linear_op<NATIVE>(op, index, shared, base, in, tid, state, partials);
  }
  compute_sync();
  // The last block to finish; all blocks have read the launch number.
  if (tid == 0 && atomicAdd(counters + FINISHED_COUNTER, 1) + 1 == gridDim.x) {
    counters[FINISHED_COUNTER] = 0;
    counters[LAUNCH_COUNTER] = in.epoch + 1;
  }
}
