"""Pictures on the server: decoded under limits, seen once, and kept for the sessions that need them."""
