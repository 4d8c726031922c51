"""The token ids that end a generation: by a GGUF file's metadata, as llama.cpp finds them, and by special tokens.

A chat model ends its turn with another token than a text, and most files state only one of the two as their eos. So
llama.cpp (src/llama-vocab.cpp) goes by the spellings as well; those of Hugging Face folders are found alike. Tokens so
spelled are control tokens to it, whatever type the file gives them.
"""

from collections.abc import Collection, Mapping
from typing import Any

from tokenizers import Tokenizer

# Always an end.
SPELLINGS = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|tool_response>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "</s>",
    "[EOT]",
    "[EOS]",
}
# Ends as well, where they are special tokens: llama.cpp goes by what the files of these families state.
OF_FAMILIES = {
    "<|END_OF_TURN_TOKEN|>",  # Command
    "<|assistant_end|>",  # Apertus
    "<|end_of_msg|>",  # Kimi K3
    "<|end_of_turn|>",
    "<|end_of_sentence|>",  # ERNIE
    "<|role_end|>",  # Ling
    "<|eot|>",  # Llama 4
    "<|eom|>",
    "<|EOT|>",
    "<seed:eos>",
    "<｜end▁of▁sentence｜>",  # DeepSeek
    "[|endofturn|]",  # EXAONE
    "[e~[",  # MiniMax
}
# Role, of which `tokenizer.ggml.ROLE_token_id` states the id -> spellings that have it if that key is missing. The
# last three are of code models: what pads a gap, and what begins another repository or file.
ROLES = {
    "eos": set[str](),
    "eot": {"<｜end▁of▁sentence｜>"},
    "eom": set[str](),
    "fim_pad": {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
    "fim_rep": {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
    "fim_sep": {"<|file_sep|>"},
}
# Of code models, too: control tokens around a gap, which end nothing. Keys as in `ROLES`, the second one deprecated.
AROUND_GAPS = {
    ("fim_pre", "prefix"): {
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
        *("<|code_prefix|>", "<|prefix|>"),
    },
    ("fim_suf", "suffix"): {
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
        *("<|code_suffix|>", "<|suffix|>"),
    },
    ("fim_mid", "middle"): {
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
    },
}
# A vocabulary with one of each of these sets -> what is no end in it: a message of OpenAI's harmony format, or of Solar
# Open's, ends with <|end|> while the turn goes on; Gemma 4 has </s> for HTML.
EXCEPT = (
    (({"<|return|>", "<|flush|>"}, {"<|call|>", "<|calls|>"}), "<|end|>"),
    (({"<|tool_response>"},), "</s>"),
)


def eos_ids(metadata: dict[str, Any]) -> tuple[int, ...]:
    """In ascending order; a stated id beyond the vocabulary counts for nothing."""
    ids = {piece: id for id, piece in enumerate(metadata.get("tokenizer.ggml.tokens", ()))}
    spelled = SPELLINGS - excepted(ids)
    found = set()
    for role, others in ROLES.items():
        stated = metadata.get(_key(role))
        if stated is None:
            spelled = spelled | others
        elif stated < len(ids):
            found.add(stated)
    return tuple(sorted(found | {ids[piece] for piece in spelled & ids.keys()}))


def special_ends(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Special tokens that end a turn by their spelling, in ascending order."""
    added = tokenizer.get_added_tokens_decoder()
    ids = {token.content: id for id, token in added.items() if token.special}
    ends = (SPELLINGS | OF_FAMILIES) - excepted({token.content for token in added.values()})
    return tuple(sorted(ids[end] for end in ends & ids.keys()))


def excepted(pieces: Collection[str]) -> set[str]:
    """The spellings that end nothing in a vocabulary."""
    return {end for beside, end in EXCEPT if all(some.intersection(pieces) for some in beside)}


def control_spellings(metadata: Mapping[str, Any]) -> set[str]:
    """Those of control tokens, whatever their type."""
    by_roles = {(role,): others for role, others in ROLES.items()} | AROUND_GAPS
    unstated = (
        others for roles, others in by_roles.items() if not any(_key(role) in metadata for role in roles)
    )
    return SPELLINGS.union(*unstated)


def _key(role: str) -> str:
    return f"tokenizer.ggml.{role}_token_id"
