"""Pivot classifiers for rule `pad`: labels by rollouts of the target, training, and the sigma that is safe enough.

Beginning: command.py. Files: verify_server/rules/pivots.py.
"""
