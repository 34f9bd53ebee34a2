// The kernel: warp roles and the loop over the op list.
//
// phases: struct Phase [num_records], the last one empty. token, position, trunk_row: of the row. trunk: kept
// outputs [rows, HIDDEN]. qkv, attended, partial: flagged buffers. counters: [0] launch number (from 1),
// [32] finished blocks.

extern "C" __global__ void __launch_bounds__(32 * (WARPS + 1 + COPIERS), 1)
    persistent_decode(const uint4* phases, const long long* token, const long long* position,
                      const long long* trunk_row, const int* table, char* pool, const u16* cosine, const u16* sine,
                      u16* trunk, char* qkv, char* attended, char* partial, u32* counters, int num_records) {
  extern __shared__ __align__(128) char shared[];
  u32 base = shared_at(shared), tid = threadIdx.x;
  for (u32 i = tid; i < num_records * (sizeof(Phase) / 16); i += blockDim.x)
    ((uint4*)(shared + AT_PHASES))[i] = __ldg(phases + i);
  if (tid == 0) {
    for (u32 i = 0; i < STAGES; ++i) {
      bar_init(base + AT_BARS + 16 * i, COPIERS);
      bar_init(base + AT_BARS + 16 * i + 8, WARPS);
    }
    for (u32 i = 0; i < NUM_PARTS; ++i) {
      bar_init(base + AT_PARTS_BARS + 16 * i, WARPS);
      bar_init(base + AT_PARTS_BARS + 16 * i + 8, 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const Phase* list = (const Phase*)(shared + AT_PHASES);
  u32 ring = base + AT_RING(num_records);
  const u32 num_phases = num_records - 1;
  if (tid >= THREADS + 32) {
    if (tid % 32) return;
    u32 number = tid / 32 - WARPS - 1;
    Copier copier;
    for (u32 i = 0; i < num_phases; ++i) {
      const Phase& phase = list[i];
      if (phase.kind & ATTENDS)
        copy_rows(phase, base, ring, number, copier, pool, table, (u32)*position);
      else if (FORMAT != NATIVE && phase.kind & ROUNDED)
        copy_phase<FORMAT>(phase, base, ring, number, copier);
      else
        copy_phase<NATIVE>(phase, base, ring, number, copier);
    }
    return;
  }
  Inputs in = {table,
               pool,
               cosine,
               sine,
               (u64)*token * (2 * HIDDEN),
               (u32)*position,
               *(volatile u32*)counters,
               trunk + (u64)*trunk_row * HIDDEN,
               qkv,
               attended,
               partial,
               ring};
  Place place, parts;
  if (tid >= THREADS) {
    for (u32 i = 0; i < num_phases; ++i)
      if (!(list[i].kind & ATTENDS)) finish_phase(list[i], i, shared, base, in, tid % 32, parts);
    return;
  }
  for (u32 index = 0; index < num_phases; ++index) {
    const Phase& phase = list[index];
    if (phase.kind & ATTENDS)
      attention_phase(phase, index, *(AttentionShared*)(shared + AT_X), base, in, tid, place);
    else if (FORMAT != NATIVE && phase.kind & ROUNDED)
      linear_phase<FORMAT>(phase, index, shared, base, in, tid, place, parts);
    else
      linear_phase<NATIVE>(phase, index, shared, base, in, tid, place, parts);
  }
  workers_sync();
  if (tid == 0 && atomicAdd(counters + 32, 1) + 1 == gridDim.x) {  // all blocks have read the launch number
    counters[32] = 0;
    counters[0] = in.epoch + 1;
  }
}
