"""Runs steps of the language model as captured graphs of our own kernels."""
