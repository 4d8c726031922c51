"""Engines and drafters by name: a new one is one file and one line here; `their.module:callable` names another."""

from opensled.process.registry import Registry

# How engine torch computes attention (attention.py); "auto" = the fastest that passes its test on this machine. The one
# that is left out here gathers as no server should: `gather`, for tests.
ATTENTION = ("auto", "sdpa", "triton")
GRAPHS = ("auto", "off")

# Each is called with the `ServeConfig`, and returns a `LoadedModel`.
ENGINES = Registry(
    "engine",
    {
        "auto": "verify_server.start.load_target:load",
        "torch": "verify_server.start.load_target:load_torch",
        "llamacpp": "verify_server.start.load_target:load_llamacpp",
        "vllm": "verify_server.start.load_target:refuse_vllm",
    },
)

# Each is called with the `ServeConfig` and the `LoadedModel`, and returns a `ServerDrafter`.
SERVER_DRAFTERS = Registry(
    "server drafter",
    {
        "none": "verify_server.drafting.none:NoDrafter",
        "lookup": "verify_server.drafting.lookup:ServerLookup",
        "cacheback": "verify_server.drafting.cacheback:ServerTables",
        "model": "verify_server.drafting.model:load",
        "ctc": "verify_server.drafting.heads.attach:ctc",
        "specformer": "verify_server.drafting.heads.attach:specformer",
        "exit": "verify_server.drafting.exits.exit_attach:early_exit",
    },
)
