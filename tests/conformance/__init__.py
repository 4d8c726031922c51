"""What the official OpenAI clients get from a device: cases as data, run by both, judged alike.

`make conformance` writes docs/conformance.md; `make test` runs the Python half (tests/test_conformance.py).
"""
