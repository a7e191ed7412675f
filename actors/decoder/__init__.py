"""The forward pass of Llama-like decoders over a paged cache, for the LLM and draft models."""
