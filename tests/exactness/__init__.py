"""Is the output the LLM's own? Long checks over HTTP: `python -m tests.exactness -h`."""
