"""Addresses, connections, probes."""
