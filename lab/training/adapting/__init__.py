"""A draft model goes on learning from the probabilities of its target, and is kept only where it gains.

The sequence: material.py lets the target write, learner.py trains, acceptance.py measures along held-out texts,
gate.py judges, draft_folder.py writes.
"""
