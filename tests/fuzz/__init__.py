"""Fuzzing, a target for each message: `make fuzz`. `tests/test_fuzz_targets.py` runs the targets on what is known."""
