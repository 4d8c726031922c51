"""Early exits of a target as drafts (FastVLM, arXiv 2510.22641): what the layer behind the exit learns, and from what.

The sequence: exit_source.py says which states of the target's own texts are kept (opensled_training/heads/capture.py),
exit_pupil.py trains the layer by exit_losses.py and measures it, exit_folder.py writes the draft. command.py runs them.
"""
