"""One round of all sequences: what is computed next, the step itself, and what becomes of it."""
