"""The page that a browser finds at the address of the API: a chat, and how it is served."""
