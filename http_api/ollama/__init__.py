"""Ollama's HTTP API: its requests become those of the OpenAI API beside it, its answers lines of JSON.

Source: https://docs.ollama.com/api and `api/types.go` of https://github.com/ollama/ollama. docs/ollama.md lists what is
served, ignored and refused.
"""
