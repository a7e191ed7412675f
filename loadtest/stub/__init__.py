"""A server that answers by a script, for proving the harness: it knows what should be measured."""
