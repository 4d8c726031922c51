"""A home set up without openssl: its authority, its devices' tokens, and the port where a device is handed both."""
