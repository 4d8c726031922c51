"""The device's side: draft tokens, send them, obey the verdicts."""
