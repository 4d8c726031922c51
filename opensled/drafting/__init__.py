"""What devices and servers draft from without a model: the text itself, and tables of what follows what."""
