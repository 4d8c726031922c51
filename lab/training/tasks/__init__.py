"""The task families, in the order of every table. A new family is one file and one line here."""

from . import arithmetic, code, descriptions, dialogue, howto, small_talk, smart_home, stories, units

TASKS = (
    smart_home.TASK,
    arithmetic.TASK,
    units.TASK,
    small_talk.TASK,
    stories.TASK,
    descriptions.TASK,
    howto.TASK,
    dialogue.TASK,
    code.CHAT_TASK,
    code.RAW_TASK,
)
