"""vLLM's draft model, which drafts only for the requests that the scheduler names and rests in all other steps.

vLLM lets a draft model read the rows of each step and no others: its KV has a hole where it rested, also in blocks that
other requests find in the prefix cache. Here it reads what it lacks of a text before it drafts for it. A wrong note of
what it has read costs acceptance and no text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata


def can_rest(runner: Any) -> bool:
    """Whether the runner's drafter is such a model, of plain texts and greedy drafts."""
    if not runner.speculative_config.uses_draft_model():
        return False
    drafter = runner.drafter
    return not (drafter.parallel_drafting or drafter.uses_mrope or drafter._enable_probabilistic_draft_probs)


class DraftModel:
    """Drafts in place of `GPUModelRunner.propose_draft_token_ids`."""

    def __init__(self, runner: Any) -> None:
        self._runner, self._drafter, config = runner, runner.drafter, runner.kv_cache_config
        group = config.kv_cache_groups[self._drafter.kv_cache_gid]
        slots = config.num_blocks * group.kv_cache_spec.block_size
        self._has_read = torch.zeros(slots, dtype=torch.bool, device=runner.device)  # by slot of KV

    def forget(self, common: CommonAttentionMetadata) -> None:
        """A step of the target has written the KV of other tokens."""
        self._has_read[common.slot_mapping[: common.num_actual_tokens].long()] = False

    def propose(
        self, asks: Mapping[str, int], sampled: torch.Tensor, metadata: Any, table: torch.Tensor
    ) -> tuple[list[list[int]], tuple[int, int, int]]:
        """Drafts of the batch, [] for requests without an ask; with the tokens of the longest, of all, and of what was
        read for them. `sampled`: new tokens, -1 = none; `table`: of KV blocks."""
        ids, room = self._runner.input_batch.req_ids, self._drafter.max_num_tokens
        texts, wanted = dict[int, tuple[int, list[int]]](), list[int]()
        for place, news in enumerate(sampled.tolist() if asks else ()):
            if (most := asks.get(ids[place], 0)) and room > 1:
                start, tokens = self._unread(place, news, table)
                texts[place] = start, tokens[:room]
                # What does not fit is read in the next steps.
                wanted.append(most if len(tokens) <= room else 0)
                room -= len(texts[place][1])
        drafts: list[list[int]] = [[] for _ in ids]
        if not texts:
            return drafts, (0, 0, 0)
        found = self._drafted([*texts.values()], max(wanted), metadata, table[[*texts]]).tolist()
        for place, most, draft in zip(texts, wanted, found):
            drafts[place] = draft[:most]
            start, tokens = texts[place]
            self._has_read[self._slots(table, place, start, start + len(tokens))] = True
        return drafts, (max(wanted), sum(wanted), sum([len(tokens) for _, tokens in texts.values()]))

    def _unread(self, place: int, news: Sequence[int], table: torch.Tensor) -> tuple[int, list[int]]:
        """What it lacks of a text, from a position on."""
        batch = self._runner.input_batch
        known, news = int(batch.num_tokens_no_spec[place]), [id for id in news if id >= 0]
        last = known + len(news) - 1
        lacking = (~self._has_read[self._slots(table, place, 0, last)]).nonzero()
        # vLLM wants the newest token beside at least one before it.
        start = min(last - 1, int(lacking[0]) if len(lacking) else last)
        return start, [*batch.token_ids_cpu[place, start:known].tolist(), *news]

    def _slots(self, table: torch.Tensor, place: int, start: int, end: int) -> torch.Tensor:
        size = self._drafter.block_size
        positions = torch.arange(start, end, device=table.device)
        return table[place, positions // size].long() * size + positions % size

    def _drafted(
        self, texts: Sequence[tuple[int, list[int]]], longest: int, metadata: Any, table: torch.Tensor
    ) -> torch.Tensor:
        """Drafts [text, longest], after all of them are read."""
        # All but the newest token
        before = [range(start, start + len(tokens) - 1) for start, tokens in texts]
        starts = torch.tensor([0, *map(len, before)]).cumsum(0).to(torch.int32)
        ends = torch.tensor([each.stop for each in before], dtype=torch.int32)
        ids, device = [id for _, tokens in texts for id in tokens[:-1]], self._runner.device
        common = CommonAttentionMetadata(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=ends.to(device, copy=True),
            seq_lens_cpu_upper_bound=ends,
            num_reqs=len(texts),
            num_actual_tokens=len(ids),
            max_query_len=max(map(len, before)),
            max_seq_len=int(ends.max()),
            block_table_tensor=table,
            slot_mapping=torch.empty(0, dtype=torch.int64, device=device),  # vLLM finds it
        )
        found: torch.Tensor = self._drafter.propose(
            num_speculative_tokens=longest,
            target_token_ids=torch.tensor(ids, dtype=torch.int32, device=device),
            target_positions=torch.tensor([place for each in before for place in each], device=device),
            target_hidden_states=None,
            next_token_ids=torch.tensor(
                [tokens[-1] for _, tokens in texts], dtype=torch.int32, device=device
            ),
            token_indices_to_sample=None,
            common_attn_metadata=common,
            sampling_metadata=metadata,
        )
        return found
