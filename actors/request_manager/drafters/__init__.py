"""Drafters that need no model of their own."""
