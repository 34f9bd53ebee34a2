"""TensorRT-LLM: checkpoints in its format, plain and quantized, and engines built from them."""
