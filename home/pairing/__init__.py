"""Pairing: a short code gives a device and a server a channel that no other machine can read or change."""

PAIRING_PORT = 7412  # of `opensled pair`; a device tries it if it is told none
