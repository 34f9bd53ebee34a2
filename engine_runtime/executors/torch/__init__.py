"""Runs steps of the language model in plain PyTorch."""
