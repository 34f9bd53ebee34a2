"""Runs steps of the language model as an engine of TensorRT-LLM."""
