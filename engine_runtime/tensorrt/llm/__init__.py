"""TensorRT-LLM engines of the language model: built from a checkpoint, and run as an executor."""
