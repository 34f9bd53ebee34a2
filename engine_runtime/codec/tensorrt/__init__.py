"""Flow estimator, vocoder and speech encoder as ONNX graphs and TensorRT engines (`--trt-codec`)."""
