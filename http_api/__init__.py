"""The OpenAI-compatible HTTP API, of a device and of a server: every existing app can use it."""
