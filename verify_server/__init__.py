"""The server's side: one target model, one batch, the truth of every session."""
