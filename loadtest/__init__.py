"""The load-test harness: `python -m loadtest URL`, against any OpenAI-style address.

It knows HTTP alone and imports nothing else of this project, so that it measures any server alike.
"""
