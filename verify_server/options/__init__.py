"""The options of `opensled serve`, and the names of what they choose."""
