"""Draft heads of a target: what they are trained on, how, and how far their drafts are right.

The sequence: scripts.py asks, capture.py lets the target answer and keeps its hidden states, trainer.py trains a head
by losses.py and measures it by heldout.py, verify_server/drafting/heads/files.py writes it. command.py runs them all.
"""
