"""The start of a server: puts its parts together, loads the target, opens the ports."""
