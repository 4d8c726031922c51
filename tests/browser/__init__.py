"""The page in a real Chromium, before real processes: `make browser-test`."""
