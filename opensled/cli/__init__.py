"""The command line: commands, options and their layers, help."""
