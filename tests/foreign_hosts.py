"""`Host` headers that name no address of this machine; each once looked to a parser as if it did."""

FOREIGN_HOSTS = (
    "evil.example:8411",
    "127.0.0.1.evil.example",
    "192.0.2.1:8411",
    "localhost.evil.example",
    "[::1.evil.example]",
    "[::1].evil.com",
    "[::1]evil.com:80",
    "localhost:80@evil.com",
    "localhost@evil.com",
    "127.0.0.1:80.evil.com",
    "localhost:evil.com",
    "[::1",
    "0.0.0.0:8411",
)
