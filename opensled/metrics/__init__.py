"""Metrics: kept, exposed to scrapers, read, and shown by `opensled top`."""
