"""Weights in the checkpoint format of TensorRT-LLM."""
