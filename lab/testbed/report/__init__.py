"""All benchmark results as one HTML page, made from the JSON files alone."""
