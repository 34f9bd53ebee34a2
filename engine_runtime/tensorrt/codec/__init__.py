"""TensorRT engines of flow, vocoder and speech encoder."""
