"""Target engines by name: each entry loads a `verify_server.target.Target` as `opensled serve` is configured."""

from opensled.registry import Registry

# How engine torch computes attention (attention.py); "auto" = the fastest that passes its test on this machine. The one
# that is left out here gathers as no server should: `gather`, for tests.
ATTENTION = ("auto", "sdpa", "triton")
GRAPHS = ("auto", "off")

ENGINES = Registry(
    "engine",
    {
        "auto": "verify_server.target:load",
        "torch": "verify_server.target:load_torch",
        "llamacpp": "verify_server.target:load_llamacpp",
    },
)
