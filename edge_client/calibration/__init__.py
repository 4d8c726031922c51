"""`opensled profile calibrate`: the speed of this device's drafts, and the round trip to its server."""
