"""The device: its options, its parts put together, its API, what it counts."""
