"""Verification rules at one node of a tree, where the LLM's distribution is at hand; pure."""
