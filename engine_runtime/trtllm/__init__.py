"""TensorRT-LLM: checkpoints in its format, quantized ones, engines built from them and their runtime."""
