"""CUDA-specific parts: kernels, captured graphs, memory limits. Importable on any machine."""
