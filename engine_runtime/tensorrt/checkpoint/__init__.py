"""Checkpoints in the format of TensorRT-LLM: written, quantized, read, and run in torch."""
