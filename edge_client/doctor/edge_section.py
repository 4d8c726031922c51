"""The section [edge] of the configuration files, for commands that examine what `opensled edge` would do."""

from dataclasses import replace
from typing import TypeVar

from edge_client.device.config import DeviceConfig, EdgeConfig
from opensled.cli import paired
from opensled.cli.config import options
from opensled.cli.config_layers import merge_layers, resolve
from opensled.cli.config_trust import require_trust

Config = TypeVar("Config", bound=DeviceConfig)


def with_edge_section(config: Config, section: str) -> Config:
    """`config`, with the settings of [edge] in the configuration files for options that are at their defaults.

    `section` is its own. What comes from pairing counts as a default. Raises UsageError for a bad file, and where a
    secret of [edge] would go where the file of the current folder says.
    """
    plain, own = type(config)(), paired.values({})
    given = {"server": config.server} if own and config.server != own["server"] else {}
    edge = resolve(EdgeConfig, "edge", given)
    _, decided = merge_layers(type(config), section, {})
    kept = {name: value for name, value in decided.items() if getattr(config, name) == value}
    require_trust(options(type(config)), vars(edge), kept)
    names = {item.name for item in options(EdgeConfig)}
    shared = [item.name for item in options(type(config)) if item.name in names]
    base = {**vars(plain), **({} if given else own)}
    unset = [name for name in shared if getattr(config, name) == base[name] and name not in given]
    return replace(config, **{name: getattr(edge, name) for name in unset})
