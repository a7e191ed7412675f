"""One rank of the LLM: loads its model, runs ragged batches of token trees over paged KV, samples."""
