"""Riders: what a sequence may ask for beside its text. One file each, and one line in registry.py."""
