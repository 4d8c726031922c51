"""Commits: the tokens that a verdict commits, for the readers of an answer."""

from dataclasses import dataclass

from opensled.core.answer import Origin
from opensled.core.errors import ProtocolError
from opensled.core.messages import DraftBlock, TokenLogprobs, Verdict
from opensled.core.protocol import Truth, follow_path


@dataclass(frozen=True)
class Commit:
    """Newly committed tokens, and the draft that they answer."""

    tokens: tuple[int, ...]
    drafted: int  # length of the answered draft; 0 = the server decoded without one
    accepted: int  # number of `tokens` that came from that draft
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each of `tokens`, if requested
    whole: bool = False  # a whole path of that draft was accepted, so the token after it is the bonus token
    loose: tuple[int, ...] = ()  # indices into `tokens` of draft tokens that are not the target's own
    # The origin of each token, if a relay vets drafts before the target confirms them: `accepted` is then the number of
    # vetted draft tokens, and `tokens` come from earlier drafts. None = the counts above give it
    written: tuple[Origin, ...] | None = None

    def count_drafted(self, tokens: int) -> tuple[int, int, int]:
        """Counts of the first `tokens` tokens: those accepted from the answered draft, those drafted by a device, and
        those of verdicts that answered a draft."""
        accepted = min(self.accepted, tokens)
        if self.written is None:
            return accepted, accepted, tokens if self.drafted else 0
        drafted = self.written[:tokens].count("accepted")
        return self.accepted, drafted, drafted

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The origin of each token. The tokens after a stale draft were decoded by the server meanwhile."""
        if self.written is not None:
            return self.written
        others = len(self.tokens) - self.accepted
        own: Origin = "bonus" if self.whole else "recovered"
        if others > 1 or not self.drafted:
            own = "server"
        written: list[Origin] = ["accepted"] * self.accepted
        written += [own] * others
        for index in self.loose:
            written[index] = "loose"
        return tuple(written)


class Commits:
    """Makes commits from one sequence's verdicts; it remembers which vetted tokens the device had drafted."""

    def __init__(self) -> None:
        self._places: set[int] = set()
        self._rewinds = 0

    def of(
        self,
        verdict: Verdict,
        news: tuple[int, ...],
        known: tuple[int, int],
        block: DraftBlock | None,
        truth: Truth,
    ) -> Commit:
        """The commit of a verdict: `news` are the last confirmed tokens in `truth` now.

        `known`: the numbers of confirmed and of known tokens before the verdict; `block`: the draft that it answers.
        """
        confirmed, length = known
        if not verdict.vetted and not verdict.unverified and confirmed == length:
            return commit_of(news, confirmed, verdict, block)
        if truth.rewinds != self._rewinds:
            self._rewinds = truth.rewinds
            self._places = {place for place in self._places if place < truth.kept}
        accepted = 0
        if block is not None:
            end = block.base + min(verdict.num_accepted, len(block.tokens))
            self._places.update(range(block.base, min(end, len(truth))))
            accepted = max(0, end - max(length, block.base))
        written: list[Origin] = [
            "accepted" if confirmed + index in self._places else "server" for index in range(len(news))
        ]
        if alone := min(verdict.unverified, len(news)):
            written[-alone:] = ["relay"] * alone
        self._places = {place for place in self._places if place >= truth.confirmed}
        drafted = len(block.tokens) if block else 0
        return Commit(news, drafted, accepted, _logprobs(news, verdict), written=tuple(written))


def commit_of(news: tuple[int, ...], base: int, verdict: Verdict, block: DraftBlock | None) -> Commit:
    """The commit of a verdict after `base`; `block`: the draft that it answers."""
    known, logprobs = base - verdict.base, _logprobs(news, verdict)  # `known`: of its tokens
    loose = tuple([index - known for index in verdict.loose if index >= known])
    if block is None:
        return Commit(news, 0, 0, logprobs, loose=loose)
    accepted = block.base + verdict.num_accepted - base  # of the accepted tokens, those not known before
    return Commit(
        news,
        len(block.tokens),
        min(len(news), max(0, accepted)),
        logprobs,
        _is_whole(block, verdict),
        loose,
    )


def _logprobs(news: tuple[int, ...], verdict: Verdict) -> tuple[TokenLogprobs, ...]:
    """Those of `news`; raises ProtocolError where only some of them have any."""
    logprobs = verdict.logprobs[-len(news) :] if news else ()
    if verdict.logprobs and len(logprobs) < len(news):
        raise ProtocolError("the server left log-probabilities out; reopen the sequence")
    return logprobs


def _is_whole(block: DraftBlock, verdict: Verdict) -> bool:
    """Whether the accepted tokens reach an end of the block."""
    if not block.parents:
        return verdict.num_accepted == len(block.tokens)
    path = follow_path(block, verdict.tokens[: verdict.num_accepted])
    return (path[-1] if path else -1) not in block.parents
