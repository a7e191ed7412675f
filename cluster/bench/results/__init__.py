"""What speculation brings, measured by one command that writes `docs/results.md`."""
