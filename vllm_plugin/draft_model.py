"""vLLM's draft model, which drafts only for the requests that the scheduler names and rests in all other steps.

vLLM lets a draft model read the rows of each step and no others: its KV has a hole where it rested, also in blocks that
other requests find in the prefix cache. Here it reads what it lacks of a text before it drafts for it. A wrong note of
what it has read costs acceptance and no text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from vllm_plugin.proposals import Drafted


def can_rest(runner: Any) -> bool:
    """Whether the runner's drafter is such a model, of plain texts and greedy drafts."""
    drafter = runner.drafter
    plain = not (drafter.parallel_drafting or drafter.uses_mrope or drafter._enable_probabilistic_draft_probs)
    return runner.speculative_config.uses_draft_model() and plain


class _Reading(NamedTuple):
    """What it reads of one text."""

    place: int  # in the batch
    start: int
    tokens: list[int]
    is_whole: bool  # up to the newest token


class DraftModel:
    """Drafts in place of `GPUModelRunner.propose_draft_token_ids`."""

    def __init__(self, runner: Any) -> None:
        self._runner, self._drafter = runner, runner.drafter
        config = runner.kv_cache_config
        slots = (
            config.num_blocks * config.kv_cache_groups[self._drafter.kv_cache_gid].kv_cache_spec.block_size
        )
        self._has_read = torch.zeros(slots, dtype=torch.bool, device=runner.device)  # by slot of KV

    def forget(self, common: CommonAttentionMetadata) -> None:
        """A step of the target has written other tokens' KV."""
        self._has_read[common.slot_mapping[: common.num_actual_tokens].long()] = False

    def propose(
        self, asks: Mapping[str, int], sampled: torch.Tensor, metadata: Any, common: CommonAttentionMetadata
    ) -> tuple[list[list[int]], Drafted]:
        """Drafts of the batch, [] for requests without an ask. `sampled`: new tokens, -1 = none."""
        batch, table = self._runner.input_batch, common.block_table_tensor
        drafts: list[list[int]] = [[] for _ in batch.req_ids]
        readings, room = list[_Reading](), self._drafter.max_num_tokens
        news = sampled.tolist() if asks else []
        for place, id in enumerate(batch.req_ids if asks else ()):
            if id in asks and (reading := self._reading(place, news[place], room, table)):
                readings.append(reading)
                room -= len(reading.tokens)
        if not readings:
            return drafts, Drafted(0, 0, 0, 0.0)
        places = [reading.place for reading in readings]
        wanted = [asks[batch.req_ids[place]] for place in places]
        found = self._drafted(readings, max(wanted), metadata, table[places]).tolist()
        for reading, most, ids in zip(readings, wanted, found):
            slots = self._slots(table, reading.place, reading.start, reading.start + len(reading.tokens))
            self._has_read[slots] = True
            drafts[reading.place] = ids[:most] if reading.is_whole else []
        read = sum([len(reading.tokens) for reading in readings])
        return drafts, Drafted(max(wanted), sum(wanted), read, 0.0)

    def _reading(self, place: int, news: Sequence[int], room: int, table: torch.Tensor) -> _Reading | None:
        batch = self._runner.input_batch
        known, news = int(batch.num_tokens_no_spec[place]), [id for id in news if id >= 0]
        last = known + len(news) - 1
        if not news or room < 2:
            return None
        lacking = (~self._has_read[self._slots(table, place, 0, last)]).nonzero()
        # The newest token comes in beside at least one that was computed before.
        start = min(last - 1, int(lacking[0]) if len(lacking) else last)
        tokens = [*batch.token_ids_cpu[place, start:known].tolist(), *news]
        return _Reading(place, start, tokens[:room], len(tokens) <= room)

    def _slots(self, table: torch.Tensor, place: int, start: int, end: int) -> torch.Tensor:
        size = self._drafter.block_size
        positions = torch.arange(start, end, device=table.device)
        return table[place, positions // size].long() * size + positions % size

    def _drafted(
        self, readings: Sequence[_Reading], longest: int, metadata: Any, table: torch.Tensor
    ) -> torch.Tensor:
        """Drafts [reading, longest], after all of them are read."""
        device = self._runner.device
        counts = [len(reading.tokens) - 1 for reading in readings]  # without the last ones
        starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
        ends = [reading.start + count for reading, count in zip(readings, counts)]
        positions = [range(reading.start, end) for reading, end in zip(readings, ends)]

        def on_device(ids: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.tensor(ids, dtype=dtype, device=device)

        common = CommonAttentionMetadata(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=on_device(ends),
            seq_lens_cpu_upper_bound=torch.tensor(ends, dtype=torch.int32),
            num_reqs=len(readings),
            num_actual_tokens=sum(counts),
            max_query_len=max(counts),
            max_seq_len=max(ends),
            block_table_tensor=table,
            slot_mapping=on_device([], torch.int64),
        )
        found: torch.Tensor = self._drafter.propose(
            num_speculative_tokens=longest,
            target_token_ids=on_device([id for reading in readings for id in reading.tokens[:-1]]),
            target_positions=on_device([place for each in positions for place in each], torch.int64),
            target_hidden_states=None,
            next_token_ids=on_device([reading.tokens[-1] for reading in readings]),
            token_indices_to_sample=None,
            common_attn_metadata=common,
            sampling_metadata=metadata,
        )
        return found
