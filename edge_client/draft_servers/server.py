"""`--drafter server`: a server that the user named drafts. The target decides, so its faults cost drafts only."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Sequence

from edge_client.draft_servers import detection
from edge_client.draft_servers.address import draft_address
from edge_client.draft_servers.completions import CompletionsText
from edge_client.draft_servers.detection import Found, find_server
from edge_client.draft_servers.http_stream import NotReady
from edge_client.draft_servers.llama_server import LlamaServerText, LlamaServerTokens, has_vocabulary
from edge_client.draft_servers.ollama import OllamaText
from edge_client.draft_servers.served_text import BYTES_A_TOKEN, MOST, ServedText, TextDialect
from edge_client.drafters.base import Drafter, DrafterFactory, DrafterOptions
from edge_client.drafters.by_text import ByTextDrafter
from edge_client.drafters.outage import Outage
from edge_client.drafters.streamed import StreamedDrafter
from edge_client.drafters.window import Window
from opensled.core.errors import OpenSledError, UsageError, VocabularyMismatch
from opensled.core.messages import DraftToken, ModelInfo
from opensled.core.printable import visible_line
from opensled.core.sampling import Sampler
from opensled.text.tokenizer import TargetTokenizer

log = logging.getLogger(__name__)

TEXT_OF_A_CONTEXT = 2  # bytes of a text for each token of a server's context: also code and Chinese fit then


class ServerFactory(DrafterFactory):
    """One draft server, which is asked what it is. While it is away, its drafters propose nothing."""

    def __init__(self, model: str = "", threads: int = 0, options: DrafterOptions = DrafterOptions()) -> None:
        if not options.draft_url:
            raise UsageError(
                "--drafter server needs --draft-url URL, the address of a llama-server, an Ollama, an LM Studio or "
                "another server with OpenAI's /v1/completions"
            )
        self._address = draft_address(options.draft_url, options.draft_key, options.draft_ca)
        if self._address.key_in_clear:
            log.warning("the key of draft-key travels to %s in clear text; use https", self._address.place)
        self._model, self._window = model, options.window
        self.outage = Outage(f"the draft server {self._address.place}")
        self._found: tuple[DraftServer, int] | None = None  # and the failures before it was found
        self._target: tuple[ModelInfo, TargetTokenizer] | None = None
        self._looking = threading.Lock()
        self.name = f"server {self._address.place}"
        self.mode = ""  # "token ids" or "text", once it is known

    def fit(self, target: ModelInfo, tokenizer: TargetTokenizer | None = None) -> None:
        """Ask the server what it is. One that does not answer is no error: it is asked again later.

        Raises UsageError, NotFound or Unauthorized for one that is no draft server, lacks the model, or wants a key.
        """
        if tokenizer is None:
            raise VocabularyMismatch(f"{self.name} needs the target's tokenizer")
        self._target = target, tokenizer
        try:
            self._connect(target, tokenizer)
        except NotReady as error:
            self.outage.failed(error)

    def create(self) -> ServerDrafter:
        return ServerDrafter(self)

    @property
    def note(self) -> str:
        return self.outage.words

    def _connect(self, target: ModelInfo, tokenizer: TargetTokenizer) -> None:
        found = find_server(self._address, self._model)
        served = DraftServer(found, target, tokenizer, self.outage, self._window)
        self.name, self.mode = f"server {served.name} at {self._address.place}", served.mode
        self._found = served, self.outage.total

    @property
    def served(self) -> DraftServer | None:
        """The server as it is now; None = it failed since it was found, or was not found yet."""
        served, failures = self._found or (None, 0)
        return served if failures == self.outage.total else None

    def look_again(self) -> None:
        """Ask the server again what it is, if it may be back, in a thread of its own: nobody waits for drafts."""
        if self._target and self.outage.is_over and self._looking.acquire(blocking=False):
            threading.Thread(target=self._look, args=self._target, daemon=True).start()

    def _look(self, target: ModelInfo, tokenizer: TargetTokenizer) -> None:
        try:
            if self.served is None:  # another drafter's look may have found it meanwhile
                self._connect(target, tokenizer)
        except OpenSledError as error:
            self.outage.failed(error)
        finally:
            self._looking.release()


class DraftServer:
    """A server that was found: how it drafts for a target."""

    def __init__(
        self,
        found: Found,
        target: ModelInfo,
        tokenizer: TargetTokenizer,
        outage: Outage,
        window: int = 0,
    ) -> None:
        """`window`: tokens of a text that it reads; 0 = as it likes. Raises DraftSourceError."""
        self._address, self._found, self._target = found.address, found, target
        self._tokenizer, self._outage, self._tokens = tokenizer, outage, window
        self._window = Window(window)
        self._numbers = itertools.count()
        facts = found.facts
        self._speaks_ids = facts is not None and has_vocabulary(
            found.address, facts, tokenizer, target.vocab_size
        )
        self.mode = "token ids" if self._speaks_ids else "text"
        self.name = f"{found.kind} {visible_line(found.model)[: detection.MAX_NAME]} by {self.mode}"

    def create(self) -> Drafter:
        """A drafter for one sequence at a time."""
        facts, number = self._found.facts, next(self._numbers)
        slot = number % facts.slots if facts else 0
        if facts and self._speaks_ids:
            source = LlamaServerTokens(self._address, self._tokenizer, slot, self._outage)
            return StreamedDrafter(source, facts.context or 1 << 30, self._outage, self._window)
        context = facts.context if facts else self._found.context
        most = TEXT_OF_A_CONTEXT * context or MOST
        text = ServedText(
            self._address,
            dialect_of(self._found, slot),
            self._outage,
            BYTES_A_TOKEN * self._tokens if self._tokens else most,
        )
        return ByTextDrafter(text, self._tokenizer, self._target.eos_ids)


def dialect_of(found: Found, slot: int = 0) -> TextDialect:
    """How a server that was found goes on with a text."""
    if found.kind == detection.LLAMA:
        return LlamaServerText(slot)
    if found.kind == detection.OLLAMA:
        return OllamaText(found.model)
    return CompletionsText(found.model)


class ServerDrafter(Drafter):
    """Drafts one sequence by the server as it is now: after each outage it may be another one."""

    def __init__(self, factory: ServerFactory) -> None:
        self._factory = factory
        self._drafter: Drafter | None = None
        self._served: DraftServer | None = None  # what made `_drafter`
        self._truth: list[int] = []
        self._sampler: Sampler | None = None

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._truth, self._sampler = list(prompt), sampler
        if self._drafter:
            self._drafter.begin(prompt, sampler)

    def commit(self, tokens: Sequence[int]) -> None:
        self._truth += tokens
        if self._drafter:
            self._drafter.commit(tokens)

    def propose(self) -> Iterator[DraftToken]:
        drafter = self._latest()
        return drafter.propose() if drafter else iter(())

    @property
    def ready(self) -> int:
        return self._drafter.ready if self._drafter else 0

    @property
    def behind(self) -> bool:
        drafter = self._latest()
        return drafter is not None and drafter.behind

    def read(self, most: int) -> bool:
        drafter = self._latest()
        return drafter is not None and drafter.read(most)

    def look_ahead(self, block: Sequence[DraftToken], length: int) -> Iterator[None]:
        drafter = self._latest()
        return drafter.look_ahead(block, length) if drafter else iter(())

    def interrupt(self) -> None:
        if drafter := self._drafter:
            drafter.interrupt()

    def close(self) -> None:
        self._replace(None)
        self._truth, self._sampler = [], None

    def _latest(self) -> Drafter | None:
        """The drafter over the server as it is now; None while it is away."""
        served = self._factory.served
        if served is None:
            self._factory.look_again()
        if served is not self._served:
            self._replace(served)
        return self._drafter

    def _replace(self, served: DraftServer | None) -> None:
        former, self._drafter, self._served = self._drafter, None, served
        if former:
            former.close()
        if served and self._sampler is not None:
            self._drafter = served.create()
            self._drafter.begin(self._truth, self._sampler)
