"""Who may import whom, and where each heavy library is at home; test_layers.py checks it."""

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

EVERYTHING = (
    "opensled",
    "hw_profiles",
    "scheduler",
    "http_api",
    "edge_client",
    "verify_server",
    "relay",
    "home",
    "adapt",
    "vllm_plugin",
    "lab",
)
# package -> the packages it may import, besides itself
ALLOWED: dict[str, tuple[str, ...]] = {
    "opensled": (),
    "hw_profiles": ("opensled",),
    "scheduler": ("opensled", "hw_profiles"),
    "http_api": ("opensled",),
    "edge_client": ("opensled", "hw_profiles", "scheduler", "http_api"),
    "verify_server": ("opensled", "hw_profiles", "scheduler", "http_api"),
    "relay": ("opensled", "hw_profiles", "scheduler", "edge_client", "verify_server"),
    "home": ("opensled", "edge_client", "verify_server"),
    "adapt": ("opensled", "edge_client", "verify_server"),
    "vllm_plugin": ("opensled", "hw_profiles", "scheduler", "verify_server"),
    "lab": EVERYTHING,  # it stays in the checkout
}
PLUG_INS = ("home", "adapt", "vllm_plugin")
# The files that put a program together may import plug-ins; no other file of the product knows one.
COMPOSING = (
    "edge_client/device/command.py",
    "edge_client/link/located.py",
    "verify_server/start/command.py",
    "verify_server/cluster/cluster_command.py",
    "relay/command.py",
)
# The rooms of each package, lowest first: a room imports those before it. An arrow that runs the other way is named.
ROOMS = {
    "opensled": "core wire process net metrics drafting cli text models",
    "edge_client": "link lengths drafters draft_servers round offline device terminal doctor",
    "verify_server": "text access vision engine engine/torch engine/llamacpp rules kv options round riders "
    "drafting drafting/heads drafting/exits gpu_check admission front start cluster",
}
UPWARD = {
    "verify_server/start -> verify_server/cluster",  # `opensled serve` becomes a gateway
    "verify_server/riders -> verify_server/admission",  # the type of what checks inputs
    "edge_client/device -> edge_client/terminal",  # `opensled generate` prints an answer
}
MAX_ROOMS = 20  # of a package
# The inner ring, which a newcomer holds in the head, by the beginnings of its files' names; the rest of the product is
# the shell.
KERNEL = (
    *("opensled/core/", "opensled/wire/"),
    *("edge_client/round/", "edge_client/link/", "edge_client/lengths/"),
    *(f"verify_server/{room}/" for room in ("round", "rules", "kv", "riders")),
    "verify_server/engine/base.py",
    "scheduler/",
)
OUTSIDE_KERNEL = ("scheduler/cluster/",)
GRPC_HOMES = (
    "edge_client/link/link.py",
    "edge_client/link/link_errors.py",
    "edge_client/link/link_presence.py",
    "verify_server/front/service.py",
    "verify_server/access/byte_stream.py",
)
GATEWAY_HOMES = ("verify_server/cluster/gateway.py", "verify_server/cluster/replica_links.py")
# Figures measure the bare libraries beside the product.
BARE_ROUNDS, BARE_LOOP = "lab/benchmarks/rounds.py", "lab/benchmarks/edge_loop.py"
ATTACKERS = "lab/benchmarks/attacks/messages.py"  # what no client of ours would say
ON_A_GPU = "lab/benchmarks/gpu/"
BARE_SERVING = "lab/benchmarks/serving_plain.py"  # others' engines, as their users run them
MODEL_HOMES = (
    "verify_server/engine/",
    "vllm_plugin/",
    "lab/training/",
    "lab/testbed/reference.py",
    "lab/testbed/gguf_reference.py",
    "lab/testbed/vision_reference.py",
    ON_A_GPU,
)
HEADS, EXITS, GPU_CHECK = (
    "verify_server/drafting/heads/",
    "verify_server/drafting/exits/",
    "verify_server/gpu_check/",
)
TORCH_HOMES = (*MODEL_HOMES, HEADS, EXITS, GPU_CHECK, BARE_SERVING)
LLAMA_HOMES = (
    "opensled/models/llama_api.py",
    "verify_server/engine/llamacpp/llama_cache.py",
    "lab/testbed/gguf_reference.py",
)
PLOT_HOMES = (
    "lab/testbed/planner/picture",
    "lab/testbed/planner/tradeoff_picture.py",
    "lab/benchmarks/picture.py",
    "lab/benchmarks/real_plot.py",
    "lab/benchmarks/hub_places_plot.py",
    "lab/benchmarks/quality_plot.py",
)
# library -> the files, or folders with a slash, that may import it
HOMES = {
    "grpc": (*GRPC_HOMES, *GATEWAY_HOMES, BARE_ROUNDS),
    "grpc_health": (
        "verify_server/front/service.py",
        "verify_server/cluster/replica.py",
        "verify_server/cluster/replica_links.py",
    ),
    "grpc_reflection": ("verify_server/front/service.py",),
    "torch": TORCH_HOMES,
    "transformers": (
        *MODEL_HOMES,
        HEADS,
        EXITS,
        "verify_server/gpu_check/equality.py",
        "verify_server/text/hf_text.py",
    ),
    "triton": (
        "verify_server/engine/torch/triton_attention.py",
        "verify_server/engine/torch/triton_kernels.py",
        "lab/benchmarks/gpu/interpreter_probe.py",
    ),
    "vllm": ("vllm_plugin/",),
    "huggingface_hub": ("verify_server/engine/torch/loading.py", "vllm_plugin/text.py"),
    "starlette": ("http_api/", "verify_server/front/"),
    "uvicorn": ("http_api/server.py", "http_api/http_connection.py", "vllm_plugin/serve.py"),
    "httpx": ("lab/testbed/", "lab/benchmarks/"),
    "matplotlib": PLOT_HOMES,
    "rich": ("lab/testbed/demo_view.py", "lab/testbed/load/load_view.py"),
    "prometheus_client": ("opensled/metrics/exposition.py", "opensled/metrics/registry.py"),
    "ray": ("scheduler/cluster/ray_runtime.py",),
    "cryptography": (
        "adapt/shelf/signature.py",
        "home/pairing/channel.py",
        "home/desk/authority.py",
        "verify_server/access/certificates.py",
    ),
    "spake2": ("home/pairing/channel.py",),
    "zeroconf": ("home/discovery.py",),
    "ifaddr": ("opensled/net/own_addresses.py",),
    "llguidance": ("verify_server/text/guide.py", "verify_server/text/grammar_compiler.py"),
    "uvloop": ("verify_server/start/command.py",),
    "llama_cpp": (*LLAMA_HOMES, BARE_LOOP, BARE_SERVING),
    "jinja2": ("opensled/text/chat_sandbox.py",),
    "onnxruntime": ("edge_client/drafters/onnx.py", "lab/training/distil/agreement.py"),
    "google.protobuf": ("opensled/wire/codec.py",),
    "opensled.v1.verify_pb2": (
        "opensled/wire/codec.py",
        "opensled/wire/open_codec.py",
        "opensled/wire/draft_codec.py",
        ATTACKERS,
    ),
    "opensled.v1.verify_pb2_grpc": ("edge_client/link/link.py",),
}
# Files whose worth is that they share nothing with the product.


ROOT = Path(__file__).resolve().parents[1]
GENERATED = "opensled/v1/"
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
IMPORT = ast.Import | ast.ImportFrom


def _sources(*packages: str) -> list[str]:
    """Hand-written files, as paths from the repository root."""
    files = (path for package in packages for path in (ROOT / package).rglob("*.py"))
    names = (path.relative_to(ROOT).as_posix() for path in files)
    return sorted(name for name in names if not name.startswith(GENERATED))


class _Source(NamedTuple):
    """What is asked of a file: it is parsed once, and its tree is not kept."""

    imports: tuple[ast.Import | ast.ImportFrom, ...]  # wherever they stand
    loaded: tuple[ast.Import | ast.ImportFrom, ...]  # those outside of functions, for type checkers included
    functions: tuple[tuple[int, str, int], ...]  # line, name, lines


def _statements(body: list[ast.stmt], inside: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement, and whether it stands in a function."""
    for node in body:
        yield node, inside
        deeper = inside or isinstance(node, FUNCTION)
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            if isinstance(nested := getattr(node, part, None), list):
                yield from _statements(nested, deeper)


@cache
def _source(file: str) -> _Source:
    gc.disable()  # it would look through the growing tree again and again, most of the time taken here
    try:
        found = list(_statements(ast.parse((ROOT / file).read_text("utf-8"), file).body))
    finally:
        gc.enable()
    return _Source(
        tuple(node for node, _ in found if isinstance(node, IMPORT)),
        tuple(node for node, inside in found if isinstance(node, IMPORT) and not inside),
        tuple(
            (node.lineno, node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
            for node, _ in found
            if isinstance(node, FUNCTION)
        ),
    )


@cache
def _imports(file: str) -> tuple[tuple[str, int], ...]:
    """(dotted name, line) of every import, wherever in the file it stands; `from a import b` counts as a.b."""
    found: list[tuple[str, int]] = []
    for node in _source(file).imports:
        base = "" if isinstance(node, ast.Import) else _absolute(file, node) + "."
        found += [(base + alias.name, node.lineno) for alias in node.names]
    return tuple(found)


def _absolute(file: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = file.split("/")[: -node.level]
    return ".".join([*package, *(node.module or "").split(".")]).rstrip(".")


def _room(file: str) -> str:
    """The folder of a file."""
    return file.rpartition("/")[0]


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
