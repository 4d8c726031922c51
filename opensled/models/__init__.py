"""Models on this machine: names, files, downloads, and what is made of shipped weights."""
