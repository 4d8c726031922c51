"""Shared KV blocks under arbitrary orders of events: a model of what each block holds must always agree.

Hypothesis opens texts of a few kinds for two tenants, computes them in pieces with drafts of any quality, evicts, and
gives up. The model writes down for each position what was computed there, and with which text before it.
"""

from collections import Counter
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.hypothesis_profiles import bounded
from verify_server.kv.blocks import BlockPool, BlockTable, OutOfBlocks
from verify_server.kv.prefix import prefix_keys

BLOCKS, SIZE, BUDGET = 10, 3, 21  # blocks; tokens in one; tokens that tenant "a" may hold
KEY = b"a secret of this test"
small = st.integers(0, 30)
Content = tuple[str, tuple[int, ...]]  # the tenant, and the text up to and with a position


@dataclass
class Text:
    tenant: str
    tokens: list[int]
    table: BlockTable
    computed: int = 0


class Sharing(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.pool = BlockPool(BLOCKS, SIZE, self.lost, KEY)
        self.slots: dict[int, Content] = {}
        self.texts: list[Text] = []

    def lost(self, blocks) -> None:
        for slot in [slot for slot in self.slots if slot // SIZE in blocks]:
            del self.slots[slot]

    def slot(self, text: Text, position: int) -> int:
        return text.table.blocks[position // SIZE] * SIZE + position % SIZE

    @precondition(lambda self: len(self.texts) < 5)
    @rule(
        tenant=st.sampled_from("ab"),
        kind=st.integers(1, 2),
        length=st.integers(1, 14),
        last=st.integers(1, 2),
    )
    def open(self, tenant: str, kind: int, length: int, last: int) -> None:
        budget = BUDGET if tenant == "a" else 0
        self.texts.append(Text(tenant, [kind] * length + [last], BlockTable(self.pool, tenant, budget)))

    def any(self, index: int) -> Text:
        return self.texts[index % len(self.texts)]

    @precondition(lambda self: self.texts)
    @rule(index=small)
    def adopt(self, index: int) -> None:
        text = self.any(index)
        before, hits = text.computed, self.pool.hits
        text.computed = text.table.adopt(text.tokens, text.computed)
        assert before <= text.computed < len(text.tokens), "the last token is always computed"
        assert self.pool.hits - hits == text.computed - before

    @precondition(lambda self: self.texts)
    @rule(index=small, count=st.integers(1, 14), draft=st.integers(0, 4), accepted=st.integers(0, 4))
    def compute(self, index: int, count: int, draft: int, accepted: int) -> None:
        """A step over one text; if it reaches the newest token, a draft is verified and more is committed."""
        text = self.any(index)
        stop = min(text.computed + count, len(text.tokens))
        drafted = [3] * draft if stop == len(text.tokens) else []
        held, free = list(text.table.blocks), self.pool.num_free
        try:
            text.table.grow(stop + len(drafted))
        except OutOfBlocks:
            assert (text.table.blocks, self.pool.num_free) == (held, free)
            return
        for block in text.table.blocks[len(held) :]:
            assert not any(block * SIZE + offset in self.slots for offset in range(SIZE)), (
                "a loss nobody heard of"
            )
        self.write(text, stop, drafted)
        if stop < len(text.tokens):
            text.computed = stop
        else:
            self.commit(text, drafted[:accepted])
        text.table.publish(text.tokens, text.computed)

    def write(self, text: Text, stop: int, drafted: list[int]) -> None:
        assert text.table.is_own(text.computed)
        whole = [*text.tokens[:stop], *drafted]
        for position in range(text.computed, len(whole)):
            self.slots[self.slot(text, position)] = text.tenant, tuple(whole[: position + 1])

    def commit(self, text: Text, accepted: list[int]) -> None:
        text.computed = len(text.tokens) + len(accepted)
        text.tokens += [*accepted, 1]
        text.table.truncate(text.computed)

    @precondition(lambda self: self.texts)
    @rule(index=small)
    def evict(self, index: int) -> None:
        self.any(index).table.clear()
        self.any(index).computed = 0

    @precondition(lambda self: self.texts)
    @rule(index=small, sick=st.booleans())
    def end(self, index: int, sick: bool) -> None:
        text = self.texts.pop(index % len(self.texts))
        if sick:
            text.table.withdraw()
        text.table.clear()

    # -- what always holds --------------------------------------------------------------------------

    @invariant()
    def each_text_reads_what_belongs_to_it(self) -> None:
        for text in self.texts:
            for position in range(text.computed):
                wanted = text.tenant, tuple(text.tokens[: position + 1])
                assert self.slots[self.slot(text, position)] == wanted

    @invariant()
    def what_can_be_found_is_what_its_key_says(self) -> None:
        for key in self.pool.recent_prefixes(10 * BLOCKS):
            block = self.pool.prefixes.find(key)
            tenant, tokens = self.slots[block * SIZE + SIZE - 1]
            assert prefix_keys([*tokens, 0], tenant, KEY, SIZE)[-1] == key

    @invariant()
    def holders_are_counted(self) -> None:
        held = Counter(block for text in self.texts for block in text.table.blocks)
        assert [self.pool.holders(block) for block in range(BLOCKS)] == [
            held[block] for block in range(BLOCKS)
        ]
        states = self.pool.states()
        assert min(states.values()) >= 0 and sum(states.values()) == BLOCKS
        assert states["free"] + states["cached"] == self.pool.num_free == BLOCKS - len(held)
        assert states["shared"] == sum(count > 1 for count in held.values())

    @invariant()
    def tenants_share_nothing_and_keep_their_budgets(self) -> None:
        blocks = {
            tenant: {block for text in self.texts if text.tenant == tenant for block in text.table.blocks}
            for tenant in "ab"
        }
        assert not blocks["a"] & blocks["b"]
        assert {tenant: self.pool.count_held(tenant) for tenant in "ab"} == {
            t: len(b) for t, b in blocks.items()
        }
        assert len(blocks["a"]) * SIZE <= BUDGET


TestSharing = bounded(Sharing, examples=300, steps=50)
