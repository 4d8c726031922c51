"""The link to the server: its streams, its moves, what is sent once and kept."""
