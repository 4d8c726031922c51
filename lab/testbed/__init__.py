"""What checks and measures the product from outside: the reference, the demo, emulated fleets and links."""
