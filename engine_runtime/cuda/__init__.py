"""What only a CUDA device has: recorded graphs and kernels. Importable everywhere, used where the device
is."""
