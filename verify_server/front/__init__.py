"""The server's own HTTP API, for clients without a device: each answer is a sequence like those of devices."""
