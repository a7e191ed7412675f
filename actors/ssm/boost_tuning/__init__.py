"""Boost-tuning: training draft models on what the LLM itself answers."""
