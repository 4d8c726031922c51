"""Ten minutes on a GPU: six stages that measure OpenSLED on the card of a bare machine (README.md beside this file)."""
