"""What devices and servers draft with alike: the text itself and tables of what follows what."""
