"""The tokenizer of `tiny` and one token more, which stands for a picture."""

from pathlib import Path

from transformers import PreTrainedTokenizerFast

from ..train_tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, load_tokenizer

IMAGE = "<image>"
IMAGE_ID = VOCAB_SIZE
PADDED_VOCAB = 2064  # rows of the embedding, a multiple of 16

# A turn's content is text, or a list of parts. Its pictures come first, wherever the list has them: clients differ.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}"
    "{%- else -%}"
    "{%- for part in message['content'] if part['type'] == 'image' -%}{{- '<image>' -}}{%- endfor -%}"
    "{%- for part in message['content'] if part['type'] == 'text' -%}{{- part['text'] -}}{%- endfor -%}"
    "{%- endif -%}"
    "{{- '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def vision_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """From the tokenizer in `folder`, that of the tiny family."""
    tokenizer = load_tokenizer(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL_TOKENS[1:], IMAGE]})
    tokenizer.chat_template = CHAT_TEMPLATE
    assert tokenizer.convert_tokens_to_ids(IMAGE) == IMAGE_ID, "the tokenizer is not that of the tiny family"
    return tokenizer
