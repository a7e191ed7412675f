"""`speculation.proto`, its generated stubs, and the generator. Imports nothing of ours."""
