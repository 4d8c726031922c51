"""The draft of `smollm2`: a few of its layers, trained against its probabilities on text that it wrote itself.

The sequence: self_prompts.py asks, self_text.py lets the target answer and keeps its most likely tokens, pruned.py cuts
the draft out of the target, distiller.py trains it, agreement.py measures, shipped_layers.py writes what is shipped.
"""
