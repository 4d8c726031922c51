"""The family's tokenizer: byte-level BPE, digits one by one, four chat tokens, one chat template."""

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .item import Item
from .tasks import TASKS
from .tasks.code import training_files

VOCAB_SIZE = 2048
END = "<|end|>"
SPECIAL_TOKENS = (END, "<|system|>", "<|user|>", "<|assistant|>")
CONTEXT = 1024

# Qwen2's split, because llama.cpp knows it by name (`tokenizer.ggml.pre = qwen2`): every digit stands alone.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
SAMPLE_ITEMS_PER_TASK = 3000


def render_prompt(item: Item) -> str:
    """What the chat template makes of the item, its generation prompt included; raw text stays as it is."""
    if not item.chat:
        return item.text
    turns = "".join(f"<|{turn['role']}|>{turn['content']}{END}" for turn in item.messages)
    return turns + "<|assistant|>"


def _sample_texts(seed: int) -> Iterator[str]:
    """Training text only: a merge learned from held-out text would be a leak, if a small one."""
    rng = random.Random(seed)
    for task in TASKS:
        for _ in range(SAMPLE_ITEMS_PER_TASK):
            item = task.draw_from(rng, "train")
            yield from (*(text for _, text in item.history), item.text, item.reply)
    yield from training_files()


def train_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample_texts(seed), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(folder)
