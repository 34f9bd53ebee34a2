"""TensorRT-LLM: checkpoints in its format, quantised ones, engines built from them and their runtime."""
