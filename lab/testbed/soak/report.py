"""What a soak found: as JSON, as a table, and whether anything is wrong."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lab.testbed.soak.account import Account
from lab.testbed.soak.check import Damage

# What an hour must reach.
TOKENS, IN_ALL, PER_TARGET = 200_000, 20, 3


class Report:
    """`accounts` by the name of the target; `kinds`: names of the faults; `seconds`: how long they struck."""

    def __init__(self, accounts: Mapping[str, Account], kinds: list[str], seconds: float) -> None:
        self._accounts, self._kinds, self._seconds = accounts, kinds, seconds

    @property
    def damage(self) -> Damage:
        return sum((each for account in self._all for each in account.damages), Damage())

    @property
    def _all(self) -> list[Account]:
        return list(self._accounts.values())

    @property
    def wrongs(self) -> list[str]:
        """Everything that should never happen."""
        return [f"{name}: {wrong}" for name, account in self._accounts.items() for wrong in account.wrongs]

    @property
    def right(self) -> bool:
        """Whether every answer was the target's own and nothing else went wrong, and anything was asked at all."""
        return not any(self.damage) and not self.wrongs and all(account.answers for account in self._all)

    @property
    def faults(self) -> Counter[str]:
        return sum((account.faults for account in self._all), Counter[str]())

    def goals(self) -> dict[str, bool]:
        """What an hour must reach, and whether this run did."""
        least = min((account.faults[kind] for account in self._all for kind in self._kinds), default=0)
        return {
            f"at least {TOKENS} tokens checked": self._sum("tokens") >= TOKENS,
            f"every kind of fault at least {IN_ALL} times": all(
                self.faults[kind] >= IN_ALL for kind in self._kinds
            ),
            f"every kind of fault at least {PER_TARGET} times for each target": least >= PER_TARGET,
        }

    def _sum(self, name: str) -> int:
        return sum(getattr(account, name) for account in self._all)

    def _codes(self, name: str) -> dict[str, int]:
        return dict(sum((getattr(account, name) for account in self._all), Counter[str]()))

    def as_json(self) -> dict[str, Any]:
        return {
            "right": self.right,
            "seconds": round(self._seconds),
            "answers": self._sum("answers"),
            "tokens": self._sum("tokens"),
            **self.damage._asdict(),
            "flips": self._sum("flips"),
            "resumed": self._sum("resumed"),
            "refused": self._codes("refused"),
            "broken_off": self._codes("broken"),
            "faults": dict(self.faults),
            "longest_stall_without_fault_s": round(max(account.longest_stall for account in self._all), 2),
            "goals": self.goals(),
            "wrongs": self.wrongs,
            "targets": {name: account.as_json() for name, account in self._accounts.items()},
        }

    def table(self) -> str:
        """Faults by kind and target, with the longest stall of each kind; then answers and tokens."""
        names = list(self._accounts)
        wide = max(map(len, (*self._kinds, "answers begun that broke off")), default=0)
        lines = [_row("fault", wide, [*names, "all", "stall, s"])]
        for kind in self._kinds:
            counts = [self._accounts[name].faults[kind] for name in names]
            stall = max(account.stalls().get(kind, 0.0) for account in self._all)
            lines.append(_row(kind, wide, [*counts, sum(counts), f"{stall:.1f}"]))
        lines += [_row(what, wide, [*counts, sum(counts)]) for what, counts in self._counts().items()]
        stalls = [f"{account.longest_stall:.1f}" for account in self._all]
        lines.append(_row("longest stall without fault, s", wide, stalls))
        return "\n".join(lines)

    def _counts(self) -> dict[str, list[int]]:
        every = self._all
        damages = [sum(account.damages, Damage()) for account in every]
        return {
            "answers": [account.answers for account in every],
            "tokens checked": [account.tokens for account in every],
            **{name: [getattr(each, name) for each in damages] for name in Damage._fields},
            "flips at near ties": [account.flips for account in every],
            "resumed in mid-answer": [account.resumed for account in every],
            "requests refused": [account.refused.total() for account in every],
            "answers begun that broke off": [account.broken.total() for account in every],
        }


def _row(first: str, wide: int, rest: list[Any]) -> str:
    return "  ".join([first.ljust(wide), *(str(each).rjust(16) for each in rest)]).rstrip()
