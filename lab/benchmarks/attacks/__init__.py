"""Attacks on the server's availability, measured: `python -m lab.benchmarks.attacks --help`."""
