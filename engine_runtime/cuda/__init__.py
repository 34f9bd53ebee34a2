"""What only a CUDA device has: kernels, captured graphs, weight formats. It can be imported anywhere."""
