"""Around TensorRT-LLM: checkpoints converted and quantised for it, engines built with it and read."""
