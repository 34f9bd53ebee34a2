"""What only a CUDA device has: kernels, recorded graphs, weight formats. It can be imported anywhere."""
