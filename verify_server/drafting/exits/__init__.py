"""Early exits of a target as drafts beside it (FastVLM, arXiv 2510.22641).

The draft is the target's embedding, its first layers, one layer that imitates the last ones, and the target's final
norm and output layer. Weights and KV of what both have in common are there once: exit_network.py makes the network,
exit_drafter.py keeps the KV of the imitating layer, exit_attach.py puts both beside a target.
"""
