"""The LLM split over several ranks: tensor-parallel shards of pipeline stages, by DeepSpeed."""
