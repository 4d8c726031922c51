"""Questions whose answers can be checked, for targets of the size of SmolLM2.

Their answers are sentences of 15 to 50 tokens, so that a rule which looks ahead has room. Examples in the prompt show
the form: a model of 135 million parameters answers in too many forms without them. Asked greedily, SmolLM2 is
right in a third to two thirds of each kind. A new kind is one file and one line here.
"""

from . import comparisons, letters, notes, products, records, sums

QUESTIONS = (sums.TASK, products.TASK, comparisons.TASK, notes.TASK, records.TASK, letters.TASK)
