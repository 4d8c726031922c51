"""Who may connect, as which tenant, and within which limits."""
