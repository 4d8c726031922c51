"""Which drafter a device has for a target: the one it was told, or lookup (and tables) where no draft model fits.

Drafts change the speed of an answer, never its text. So a draft model that is missing is no error: the device says so
in one line, and drafts without a model. A model that the user named drafts by text if its vocabulary is another one.
"""

from __future__ import annotations

from typing import NamedTuple

from edge_client.device.config import DeviceConfig
from edge_client.device.known_drafts import HOW_TO_GET_ONE, choose_drafter, draft_of, without_model
from edge_client.drafters import AUTO, DRAFTERS, OFF, asks_server
from edge_client.drafters.base import Drafter, DrafterFactory, DrafterOptions
from edge_client.drafters.none import NoneFactory
from edge_client.drafters.threads import model_drafter
from edge_client.drafters.vocabulary import Vocabulary
from opensled.core.answer import LOCAL_ONLY
from opensled.core.errors import UsageError, VocabularyMismatch
from opensled.core.messages import ModelInfo
from opensled.models.store import can_be_fetched
from opensled.process import logs
from opensled.text.tokenizer import TargetTokenizer


class FittingFactory(DrafterFactory):
    """The drafter of a device, for whatever target its server turns out to have."""

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        self._fitting: DrafterFactory = NoneFactory()
        # What `_fitting` was made of; None = it stands in for another one
        self._named: DeviceConfig | None = None
        self._told = ""  # fingerprint of the target for which the user knows that drafts go by text

    @property
    def name(self) -> str:  # type: ignore[override]
        """Of the drafter for the latest target."""
        return self._fitting.name

    @property
    def vocabulary(self) -> Vocabulary:  # type: ignore[override]
        """See `DrafterFactory`."""
        return self._fitting.vocabulary

    def fit(self, target: ModelInfo, tokenizer: TargetTokenizer | None = None) -> None:
        """Choose the drafter for `target`.

        Raises UsageError, NotFound or UnsupportedModel for files and options that the user named and that cannot be
        used.
        """
        named = choose_drafter(self._config, target.model_id)
        if named.draft_url and not asks_server(named.drafter):
            raise UsageError(
                f"--draft-url is for --drafter server, and --drafter {named.drafter} asks no server"
            )
        served = _Served(self._config, target, tokenizer)
        if named != self._named or served.misfit(self._fitting):  # else its weights stay loaded
            found = _fitting(self._config, named, served)
            if isinstance(found, str):
                self._fitting, self._named = _stand_in(self._config, target, found), None
            else:
                self._fitting, self._named = found, named
        if self.vocabulary.kind == "text" and self._told != target.fingerprint:
            self._told = target.fingerprint
            logs.announce(
                f"the draft model has another vocabulary than {target.model_id!r}: {self.name} drafts by text"
            )

    def create(self) -> Drafter:
        return self._fitting.create()

    @property
    def note(self) -> str:
        return self._fitting.note


class _Served(NamedTuple):
    """A device and the target that it is to draft for."""

    config: DeviceConfig
    target: ModelInfo
    tokenizer: TargetTokenizer | None

    def misfit(self, factory: DrafterFactory) -> VocabularyMismatch | None:
        """Why `factory` cannot draft for the target. A model that the user did not name drafts by ids only."""
        try:
            factory.fit(self.target, self.tokenizer)
        except VocabularyMismatch as error:
            return error
        if factory.vocabulary.kind == "text" and not self.config.draft_model:
            return VocabularyMismatch(f"{factory.name} has another vocabulary than {self.target.model_id!r}")
        return None


def _fitting(config: DeviceConfig, named: DeviceConfig, served: _Served) -> DrafterFactory | str:
    """The drafter `named` by `choose_drafter`, or why there is none."""
    target = served.target
    is_auto = config.drafter == AUTO and not config.draft_url
    needs_model = is_auto or bool(model_drafter(named.drafter))
    if needs_model and not named.draft_model:
        return f"no draft model for {target.model_id!r} is {_where(target.model_id)}"
    try:
        found = make_factory(config, named.drafter, named.draft_model)
    except UsageError as error:
        if not is_auto or config.draft_model:
            raise
        return str(error)
    misfit = served.misfit(found)
    if misfit and not needs_model:
        raise misfit  # a table that the user named
    return str(misfit).partition(";")[0] if misfit else found


def _where(target: str) -> str:
    known = draft_of(target)
    return f"here (opensled pull {known} fetches one)" if can_be_fetched(known) else "known"


def _stand_in(config: DeviceConfig, target: ModelInfo, why: str) -> DrafterFactory:
    """The drafter without a model; says why."""
    found = make_factory(config, without_model(config), "")
    found.fit(target)
    logs.announce(f"{why}; drafting with {found.name}; better: {HOW_TO_GET_ONE}")
    return found


def make_factory(config: DeviceConfig, drafter: str, model: str) -> DrafterFactory:
    """The factory of that drafter over that model, with the options as configured. Raises UsageError or NotFound."""
    kind = DRAFTERS.get(drafter)
    made_by = getattr(kind, "func", kind)  # `chain:...` comes as a partial
    if not (isinstance(made_by, type) and issubclass(made_by, DrafterFactory)):
        raise UsageError(f"{drafter} is not a drafter factory; see edge_client/drafters/base.py")
    options = DrafterOptions(
        config.draft_table,
        config.personal_table,
        config.draft_window,
        config.draft_url,
        config.draft_key,
        config.draft_ca,
        alone=config.offline == LOCAL_ONLY,
    )
    factory: DrafterFactory = kind(model, config.threads, options)
    named = {config.draft_table, config.personal_table} - {"", OFF}
    if named and not factory.uses_tables:
        raise UsageError(
            "draft-table and --personal-table are for drafters with tables, such as --drafter cacheback"
        )
    return factory
