"""`opensled drafts pull`: the draft that a server hands out to this device."""
