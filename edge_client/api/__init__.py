"""The OpenAI-compatible HTTP API of a device: every existing app can use it."""
