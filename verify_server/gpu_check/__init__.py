"""`opensled selftest`: whether a GPU computes a target rightly, and how fast."""
