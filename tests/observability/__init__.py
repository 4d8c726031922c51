"""Dashboard, rules and scrape configuration of deploy/, tried on real processes: `make observability-check`."""
