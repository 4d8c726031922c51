"""What `./opensled.toml` may not decide alone: where this user's secrets go.

The current folder may be a stranger's: unpacked, cloned, or shared. Its file outranks the user's own, so that a project
can bring its settings along. It could name a server of its author's, and the user's token would travel there.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from opensled.cli.config import Option
from opensled.core.errors import UsageError
from opensled.core.files import user_path


def require_trust(known: Iterable[Option], trusted: Mapping[str, Any], decided: Mapping[str, Any]) -> None:
    """Raises UsageError where a secret of the user would go where the folder's file says, or where that file names a
    secret outside of its folder. A flag or a variable with the same value is consent.

    `trusted`: values of flags, environment and the user's own file; `decided`: those that the folder's file decides.
    """
    options = {item.name: item for item in known}
    for secret in (item for item in options.values() if item.sent_to):
        if secret.name in decided:
            _require_inside(secret, str(decided[secret.name]))
        elif trusted.get(secret.name):
            _require_same_way(secret, options, trusted, decided)


def _require_same_way(
    secret: Option,
    options: Mapping[str, Option],
    trusted: Mapping[str, Any],
    decided: Mapping[str, Any],
) -> None:
    ways = [options[name] for name in secret.sent_to if name in decided]
    changed = [
        item for item in ways if decided[item.name] not in (True, trusted.get(item.name, item.default))
    ]
    if changed:
        own = " ".join(_spell_flag(item, decided[item.name]) for item in changed)
        raise UsageError(
            f"./opensled.toml of this folder sets {own}, and the secret of your {secret.flag} would travel that way. "
            f"If you trust this folder, give {own} yourself; else set OPENSLED_NO_CONFIG=1"
        )


def _spell_flag(item: Option, value: Any) -> str:
    """As a flag; a switch that is turned on makes a way safer, and is not asked about."""
    return f"--no-{item.flag[2:]}" if value is False else f"{item.flag} {value or repr('')}"


def _require_inside(secret: Option, path: str) -> None:
    """A file elsewhere is the user's, also behind a link."""
    if path and not user_path(path).resolve().is_relative_to(Path.cwd().resolve()):
        raise UsageError(
            f"./opensled.toml names a secret outside of its folder: {secret.flag[2:]} = {path!r}. If you trust this "
            f"folder, give {secret.flag} {path} yourself; else set OPENSLED_NO_CONFIG=1"
        )
