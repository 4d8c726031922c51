"""What checks read in a reply. They ask for the facts, in whatever words the reply puts them."""

import operator
import re

OPERATORS = {"+": operator.add, "-": operator.sub, "x": operator.mul, "*": operator.mul}


def last_number(reply: str) -> str:
    """The last whole number, without the commas of thousands; "" where there is none."""
    numbers = re.findall(r"\d+", re.sub(r"(?<=\d),(?=\d{3}\b)", "", reply))
    return numbers[-1] if numbers else ""


def is_worked_out(reply: str, answer: str) -> bool:
    """The last number is `answer`, and every sum, difference or product that the reply writes down is right."""
    equations = re.findall(r"(\d+) ?([-+x*]) ?(\d+) ?(?:=|is) ?(\d+)", reply)
    holds = all(OPERATORS[sign](int(a), int(b)) == int(result) for a, sign, b, result in equations)
    return holds and last_number(reply) == answer


def said(reply: str, words: tuple[str, ...]) -> list[str]:
    """Those of `words` that the reply has, in any case, each once and in the order in which it names them first."""
    spelled = {word.lower(): word for word in words}
    found = [spelled[word] for word in re.findall(r"\w+", reply.lower()) if word in spelled]
    return list(dict.fromkeys(found))
