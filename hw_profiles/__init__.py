"""Measured numbers of machines and links, and the seconds they imply."""
