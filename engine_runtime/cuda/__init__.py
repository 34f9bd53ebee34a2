"""The language model on one CUDA GPU: weight formats, kernels, graphs, and picking ids on the device."""
