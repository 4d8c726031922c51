"""What a conversation begins with: which model answers, and what the bundled model was made for."""

from opensled.core.messages import ModelInfo
from opensled.models.examples import TINY

# What the tiny models were trained for, by task (lab/training/tasks/).
TINY_SKILLS = {
    "smart_home": "smart-home commands",
    "arithmetic": "sums and differences",
    "units": "unit conversions",
    "small_talk": "small talk",
    "stories": "short stories",
    "descriptions": "descriptions",
    "howto": "how-to questions",
    "dialogue": "dialogues",
    "code_chat": "Python functions",
    "code": "Python functions",
}
TINY_IDS = ("tiny", "tiny-f16")  # the bundled target: its folder, and its file for llama.cpp


def greeting(info: ModelInfo, server: str, drafter: str) -> list[str]:
    """Paragraphs for a person who does not know what answers here."""
    context = f"A conversation has room for {info.limits.context_length:,} tokens."
    drafting = "nothing" if drafter == "none" else f"with {drafter}"
    lines = [f"{info.model_id} at {server} answers, and this device drafts {drafting}. {context}"]
    if info.images:
        lines.append("It reads pictures: /image FILE shows it one with your next question.")
    if info.model_id in TINY_IDS:
        lines.append(_tiny(info.model_id))
    lines.append(
        '/help lists the commands, """ begins a message of several lines, Ctrl-C stops an answer, Ctrl-D leaves'
    )
    return lines


def _tiny(name: str) -> str:
    *skills, last = dict.fromkeys(TINY_SKILLS.values())
    examples = " ".join(f'"{example}"' for example in TINY)
    return (
        f"{name} is the small model that comes with OpenSLED, for a first try. It was trained for {', '.join(skills)} "
        f"and {last}, in English; about other things it writes nonsense. Try: {examples}"
    )
