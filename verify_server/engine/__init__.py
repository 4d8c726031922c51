"""Engines compute the target: what they share, and one room for each."""
