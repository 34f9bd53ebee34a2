"""Executors: one forward step of the language model over named tensors."""
