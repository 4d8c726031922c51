"""Files of the bundled models that git does not carry, made of what it carries: `python -m lab.shipped`."""
