"""Streaming speech tokenizer: PCM to speech codes."""
