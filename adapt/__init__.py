"""Drafts that learn: what the target wrote is kept, and adapted drafts are handed out to devices."""
