"""Target engines by name: each entry loads a `verify_server.round.loaded_model.LoadedModel` as `opensled serve` wants it."""

from opensled.core.registry import Registry

# How engine torch computes attention (attention.py); "auto" = the fastest that passes its test on this machine. The one
# that is left out here gathers as no server should: `gather`, for tests.
ATTENTION = ("auto", "sdpa", "triton")
GRAPHS = ("auto", "off")

ENGINES = Registry(
    "engine",
    {
        "auto": "verify_server.round.loaded_model:load",
        "torch": "verify_server.round.loaded_model:load_torch",
        "llamacpp": "verify_server.round.loaded_model:load_llamacpp",
        "vllm": "verify_server.engine.vllm.served:load",
    },
)
