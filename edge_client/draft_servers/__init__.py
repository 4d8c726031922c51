"""Drafters that ask a server of the user's: llama-server, Ollama, or one with OpenAI's completions."""
