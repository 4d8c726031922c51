"""Target engines by name: each entry loads a `verify_server.target.Target` as `opensled serve` is configured."""

from opensled.registry import Registry

ENGINES = Registry(
    "engine",
    {
        "auto": "verify_server.target:load",
        "torch": "verify_server.target:load_torch",
        "llamacpp": "verify_server.target:load_llamacpp",
    },
)
