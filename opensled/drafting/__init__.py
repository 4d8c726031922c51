"""What devices and servers draft with alike: the text itself, tables of what follows what, and what heads compute."""
