"""Stand-ins for TensorRT, TensorRT for RTX and the Model API of TensorRT-LLM, which compute with torch."""
