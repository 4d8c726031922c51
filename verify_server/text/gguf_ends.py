"""The token ids that end a generation by a GGUF file's metadata: the same that llama.cpp takes, without llama.cpp.

A chat model ends its turn with another token than a text, and most files state only one of the two as their eos. So
llama.cpp (src/llama-vocab.cpp) goes by the spellings as well.
"""

from typing import Any

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
# A vocabulary with one of each of these sets -> what is no end in it: a message of OpenAI's harmony format, or of Solar
# Open's, ends with <|end|> while the turn goes on; Gemma 4 has </s> for HTML.
EXCEPT = (
    (({"<|return|>", "<|flush|>"}, {"<|call|>", "<|calls|>"}), "<|end|>"),
    (({"<|tool_response>"},), "</s>"),
)


def eos_ids(metadata: dict[str, Any]) -> tuple[int, ...]:
    """In ascending order; a stated id beyond the vocabulary counts for nothing."""
    ids = {piece: id for id, piece in enumerate(metadata.get("tokenizer.ggml.tokens", ()))}
    spelled = SPELLINGS - {end for beside, end in EXCEPT if all(some & ids.keys() for some in beside)}
    found = set()
    for role, others in ROLES.items():
        stated = metadata.get(f"tokenizer.ggml.{role}_token_id")
        if stated is None:
            spelled = spelled | others
        elif stated < len(ids):
            found.add(stated)
    return tuple(sorted(found | {ids[piece] for piece in spelled & ids.keys()}))
