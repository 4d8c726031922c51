"""Questions to begin with, for a model by name: such as it was made for."""

from __future__ import annotations

TINY = ("Turn on the kitchen light.", "How many days are 17 weeks?", "Tell me a story about a fox.")
# A model of 135 million parameters knows capitals and short explanations; the rest it often gets wrong.
SMALL = ("What is the capital of France?", "What is the capital of Japan?", "Why is the sky blue?")
ANY = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "Write a Python function that adds two numbers.",
)
_BY_NAME = {"tiny-vision": (), "tiny": TINY, "smollm2": SMALL}  # by the beginning of the name


def examples(model: str) -> tuple[str, ...]:
    """Questions that this target can answer; none for one that answers questions about pictures only."""
    return next((found for name, found in _BY_NAME.items() if model.lower().startswith(name)), ANY)
