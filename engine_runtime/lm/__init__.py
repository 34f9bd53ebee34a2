"""The paged runtime of the language model: sequences, KV blocks, the executor seam, generation and
sampling."""
