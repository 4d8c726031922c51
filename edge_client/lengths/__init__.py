"""How long draft blocks get: the rules behind `--stop`, and what they learn from."""
