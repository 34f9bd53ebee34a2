"""The networks, without caches, with the state-dict names of the released checkpoints."""
