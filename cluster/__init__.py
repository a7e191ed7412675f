"""Composes the configuration, plans placement, launches and supervises the actors."""
