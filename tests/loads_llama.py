"""A plug-in that needs llama.cpp, for tests of what is said where it cannot be loaded."""

from opensled.models import llama_api

api = llama_api.load.__wrapped__()
