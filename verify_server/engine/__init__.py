"""Target engines by name; each hides its tensor library behind `base.py`."""

from opensled.registry import Registry

ENGINES = Registry("engine", {"torch": "verify_server.engine.torch_engine:load"})
