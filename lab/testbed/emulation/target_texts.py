"""What a target writes by itself on the items of a workload, token by token."""

from lab.testbed.load.load import Item
from lab.testbed.traces import ItemTrace
from opensled.core.messages import is_chat
from opensled.core.noise import noise_key
from opensled.core.protocol import EndRules, cut
from verify_server.engine.base import SampleRequest, Segment, TargetEngine
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel


def load_target(model: str = "tiny") -> ServedModel:
    """The real one, on one thread as the testbed's servers have it."""
    target: ServedModel = ENGINES.get("torch")(ServeConfig(model=model, threads=1, device="cpu"))
    return target


def write_text(target: ServedModel, item: Item) -> ItemTrace:
    """The target's own text, token by token, without any draft."""
    engine, prompt = target.engine, prompt_ids(target, item)
    tokens, reason = list(prompt), ""
    ends = ends_of(engine, item, len(prompt))
    table = BlockTable(BlockPool(engine.info.num_blocks, engine.info.block_size))
    computed = 0
    while not reason:
        table.grow(len(tokens))
        segment = Segment(tuple(tokens[computed:]), computed, tuple(table.blocks), rows=1)
        scores = engine.forward([segment])
        computed = len(tokens)
        own = scores.sample_one(SampleRequest([0], item.params, noise_key(item.seed), computed))
        news, reason = cut(own, computed, ends)
        tokens.extend(news)
    return ItemTrace(item.id, prompt, tuple(tokens[len(prompt) :]), reason, (), task=item.task)


def prompt_ids(target: ServedModel, item: Item) -> tuple[int, ...]:
    if isinstance(item.prompt, str):
        return target.text.encode(item.prompt)
    if is_chat(item.prompt):
        return target.text.render(item.prompt)
    return item.prompt  # type: ignore[return-value]


def ends_of(engine: TargetEngine, item: Item, prompt: int) -> EndRules:
    eos = frozenset() if item.ignore_eos else frozenset(engine.info.eos_ids)
    return EndRules(eos, frozenset(), min(prompt + item.max_tokens, engine.info.context_length))
