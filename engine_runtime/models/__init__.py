"""The networks, under the state-dict names of the released checkpoints; plain forward passes without
caches."""
