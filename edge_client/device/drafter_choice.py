"""Which drafter a device has for a target: the one it was told, or lookup (and tables) where no draft model fits.

Drafts change the speed of an answer, never its text. So a draft model that is missing or of another vocabulary is no
error: the device says so in one line, and drafts without a model.
"""

from __future__ import annotations

from edge_client.device.config import AUTO, DeviceConfig
from edge_client.device.known_drafts import HOW_TO_GET_ONE, choose_drafter, draft_of, without_model
from edge_client.drafters import DRAFTERS, OFF
from edge_client.drafters.base import Drafter, DrafterFactory, DrafterOptions
from edge_client.drafters.none import NoneFactory
from edge_client.drafters.threads import model_drafter
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

    @property
    def name(self) -> str:  # type: ignore[override]
        """Of the drafter for the latest target."""
        return self._fitting.name

    def fit(self, target: ModelInfo, tokenizer: TargetTokenizer | None = None) -> None:
        """Choose the drafter for `target`.

        Raises UsageError, NotFound or UnsupportedModel for files and options that the user named and that cannot be
        used.
        """
        named = choose_drafter(self._config, target.model_id)
        if named != self._named or not _fits(self._fitting, target):  # else its weights stay loaded
            found = _fitting(self._config, named, target)
            if isinstance(found, str):
                self._fitting, self._named = _stand_in(self._config, target, found), None
            else:
                self._fitting, self._named = found, named

    def create(self) -> Drafter:
        return self._fitting.create()


def _fits(factory: DrafterFactory, target: ModelInfo) -> bool:
    try:
        factory.fit(target)
    except VocabularyMismatch:
        return False
    return True


def _fitting(config: DeviceConfig, named: DeviceConfig, target: ModelInfo) -> DrafterFactory | str:
    """The drafter `named` by `choose_drafter`, or why there is none."""
    needs_model = config.drafter == AUTO or bool(model_drafter(named.drafter))
    if needs_model and not named.draft_model:
        return f"no draft model for {target.model_id!r} is {_where(target.model_id)}"
    try:
        found = make_factory(config, named.drafter, named.draft_model)
    except UsageError as error:
        if config.drafter != AUTO or config.draft_model:
            raise
        return str(error)
    try:
        found.fit(target)
    except VocabularyMismatch as error:
        if not needs_model:
            raise  # a table that the user named
        return str(error).partition(";")[0]
    return found


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
    options = DrafterOptions(config.draft_table, config.personal_table, config.draft_window)
    factory: DrafterFactory = kind(model, config.threads, options)
    named = {config.draft_table, config.personal_table} - {"", OFF}
    if named and not factory.uses_tables:
        raise UsageError(
            "--draft-table and --personal-table are for drafters with tables, such as --drafter cacheback"
        )
    return factory
