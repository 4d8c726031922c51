"""Pairing: a device and a server that share one short code get a channel that nobody else can read or change."""
