"""Drafts that this server hands out to the devices of a tenant."""
