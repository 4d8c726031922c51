"""Policy `goodput`: what a step computes, and which devices draft how much. constants.py holds the derivation."""
