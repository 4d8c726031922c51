"""The path that was meant where a client asks for one that is not served: another base URL, or a slash too many."""

from __future__ import annotations

from opensled.net.probes import LIVE, READY

V1 = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages/count_tokens",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/models",
)  # longer ones before their ends
OLLAMA = ("/api/chat", "/api/generate", "/api/show", "/api/tags", "/api/ps", "/api/version")
OTHERS = ("/tokenize", "/detokenize", "/openapi.json", "/status", "/health", LIVE, *READY)


def trim_slashes(path: str) -> str:
    """Without slashes at its end, and doubled ones."""
    return "/" + "/".join(part for part in path.split("/") if part)


def is_served(path: str) -> bool:
    """Whether a known path is served under exactly this name."""
    return path in (*V1, *OLLAMA, *OTHERS)


def right_path(path: str) -> str:
    """The path that a client meant by `path`; "" = not known. With a wrong base URL only the end is right."""
    meant = trim_slashes(path)
    if is_served(meant):
        return meant
    known = [
        *((name.removeprefix("/v1"), name) for name in V1),
        *((name, name) for name in (*OLLAMA, *OTHERS)),
    ]
    return next((name for end, name in known if meant.endswith(end)), "")
