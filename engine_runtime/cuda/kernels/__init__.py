"""Triton and CUDA kernels. The Triton modules are imported only if Triton is available
(cuda/availability.py)."""
