"""What to expect before anything runs: how many users an accelerator holds, in which mode, at what cost.

All numbers of this package are derived from profiles by `law.py`, except where they say that they are simulated.
"""
