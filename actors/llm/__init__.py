"""One rank of the LLM: loads a model, runs ragged batches of token trees over paged KV, samples."""
