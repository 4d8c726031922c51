"""`opensled profile calibrate`: how fast this device drafts, and how far its server is."""
