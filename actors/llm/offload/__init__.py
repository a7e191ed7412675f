"""The LLM with weights that are streamed from host memory or disk in every pass, by DeepSpeed."""
