"""Attacks on the server's availability, measured: `python -m benchmarks.attacks --help`."""
