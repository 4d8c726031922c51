"""Drafters beside the target, by name: a new one is one file and one line here; `their.module:callable` names another.

An entry is called with the `ServeConfig` and the `LoadedModel`, and returns a `ServerDrafter`.
"""

from opensled.core.registry import Registry

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
        "vllm": "verify_server.engine.vllm.proposals:drafter",
    },
)
