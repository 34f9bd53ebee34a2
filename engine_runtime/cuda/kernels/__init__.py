"""Triton kernels of the language model. Imported only where Triton is there (cuda/availability.py)."""
