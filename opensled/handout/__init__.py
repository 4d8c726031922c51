"""Drafts that a server hands out to the devices of one tenant: what is signed, and what travels."""
