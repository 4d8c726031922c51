"""Drafter `llamacpp` on the library in the wheel xllamacpp, where the package llama_cpp is not installed."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge_client.drafters import DRAFTERS, llamacpp
from opensled.core.errors import UsageError
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler
from opensled.models import llama, llama_api
from opensled.models.llama_api import BUILT, FUNCTIONS, PREBUILT
from opensled.process.registry import Registry, remedy
from tests import test_model_drafters
from tests.absent import without
from tests.drafter_contract import ids, pull
from tests.tiny_drafts import TEXT, TINY_DRAFT, tiny_tokenizer

ROOT = Path(__file__).parents[1]
NO_WHEEL = pytest.mark.skipif(
    find_spec(PREBUILT) is None, reason="xllamacpp is not installed: extra prebuilt"
)
GREEDY_DRAFTS = """
import json, sys
from edge_client.drafters import DRAFTERS
from opensled.models import llama_api
from tests.test_prebuilt import greedy_drafts
print(json.dumps([llama_api.package(), greedy_drafts()]))
"""


def greedy_drafts() -> list[list[int]]:
    """Behind texts of several lengths; of the same drafter, which rolls back between them."""
    sampler, text = Sampler(SamplingParams(temperature=0), noise_key(1)), tiny_tokenizer().encode(TEXT)
    drafter, found = DRAFTERS.get("llamacpp")(str(TINY_DRAFT), 1).create(), []
    for cut in range(4, len(text), 5):
        drafter.begin(text[:cut], sampler)
        found.append(ids(pull(drafter, 8)))
        drafter.commit(text[cut : cut + 2])
        found.append(ids(pull(drafter, 8)))
    drafter.close()
    return found


@pytest.fixture(scope="module")
def wheel_only(tmp_path_factory) -> dict[str, str]:
    """Variables of a Python that has no llama_cpp."""
    return without(tmp_path_factory.mktemp("wheel"), BUILT)


def run(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment, "OPENSLED_NO_CONFIG": "1"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables, cwd=ROOT)


@NO_WHEEL
class TestContract(test_model_drafters.TestLlamaCpp):
    """Against logits of the other package."""

    library = PREBUILT

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def installed(cls):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(llama_api, "package", lambda: PREBUILT)
            api = llama_api.load.__wrapped__()
            for module in (llama, llamacpp):
                patch.setattr(module, "llama_cpp", api)
            yield

    @pytest.fixture
    def environment(self, wheel_only):
        return wheel_only


@NO_WHEEL
def test_drafts_are_those_of_the_built_package(wheel_only):
    pytest.importorskip(BUILT)
    assert llama_api.package() == BUILT, "of two it takes the built one"
    done = run(GREEDY_DRAFTS, wheel_only)
    assert json.loads(done.stdout) == [PREBUILT, greedy_drafts()], done.stderr


@NO_WHEEL
def test_an_architecture_that_it_does_not_know(tmp_path, wheel_only):
    path = tmp_path / "a.gguf"
    path.write_bytes((TINY_DRAFT / "tiny-draft-q8_0.gguf").read_bytes().replace(b"llama", b"xlama", 1))
    script = f"from opensled.models.llama import LlamaModel; from pathlib import Path; LlamaModel(Path({str(path)!r}))"
    said = run(script, wheel_only).stderr
    assert "has architecture 'xlama', which this llama.cpp does not know; a newer one may: " in said
    assert "[llamacpp]" in said.splitlines()[-1], "releases of the wheel are bounded: the other may be newer"


def test_without_either_package_the_error_names_both(tmp_path):
    script = "from edge_client.drafters import DRAFTERS; DRAFTERS.get('llamacpp')"
    said = run(script, without(tmp_path, BUILT, PREBUILT)).stderr
    assert "No module named 'llama_cpp'; run: " in said and "[llamacpp]" in said
    assert said.endswith(" (needs a C++ compiler; extra prebuilt in its place needs none, and drafts only)\n")
    assert "[prebuilt]" in remedy(PREBUILT)


@pytest.fixture
def library(monkeypatch):
    """What `load` finds in place of the wheel's library: the attributes that a test gives it."""
    found = SimpleNamespace()
    monkeypatch.setattr(llama_api, "_open_library", lambda: found)
    monkeypatch.setattr(llama_api, "package", lambda: PREBUILT)
    monkeypatch.setattr(llama_api.metadata, "version", lambda name: "2030.1.7")
    return found


def test_a_library_that_exports_less_is_refused_with_what_to_install(library):
    with pytest.raises(
        UsageError, match=r"xllamacpp 2030\.1\.7 .* export llama_backend_init; run: .*\[prebuilt\]"
    ):
        refuse()


def refuse() -> None:
    """As the registry meets the error when it imports the drafter."""
    sys.modules.pop("tests.loads_llama", None)
    Registry("drafter", {"it": "tests.loads_llama:api"}).get("it")


def test_a_library_with_other_structures_is_refused(library, monkeypatch):
    monkeypatch.setattr(llama_api, "FUNCTIONS", {"llama_free": FUNCTIONS["llama_free"]})
    monkeypatch.setattr(llama_api, "has_known_layout", lambda api: False)
    library.llama_free = SimpleNamespace()
    with pytest.raises(UsageError, match=r"are laid out otherwise; run: .*\[prebuilt\]"):
        refuse()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ((), "xllamacpp has no library here that OpenSLED can load"),
        (("xllamacpp.abi3.so",), r"the library in xllamacpp cannot be loaded: .*file too short"),
    ],
)
def test_a_wheel_without_a_library_that_loads(files, said, tmp_path, monkeypatch):
    (tmp_path / PREBUILT).mkdir()
    for name in ("__init__.py", *files):
        (tmp_path / PREBUILT / name).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, PREBUILT, raising=False)
    with pytest.raises(ImportError, match=said):
        llama_api._open_library()


def test_a_missing_openmp_is_named(monkeypatch):
    def absent(path):
        raise OSError("libgomp.so.1: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(
        llama_api, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=["."])
    )
    monkeypatch.setattr(llama_api.Path, "glob", lambda path, pattern: iter(["xllamacpp.abi3.so"]))
    monkeypatch.setattr(llama_api.ctypes, "CDLL", absent)
    with pytest.raises(ImportError, match=r"libgomp\.so\.1: .*; install libgomp1, OpenMP's library"):
        llama_api._open_library()


@NO_WHEEL
class TestLayout:
    @pytest.fixture(scope="class")
    @classmethod
    def api(cls) -> SimpleNamespace:
        return llama_api._prebuilt("as installed")

    def test_the_wheels_is_known(self, api):
        assert llama_api.has_known_layout(api)

    @pytest.mark.parametrize(
        ("function", "field", "value"),
        [
            ("llama_context_default_params", "n_batch", 1),
            ("llama_context_default_params", "n_threads", 1),
            ("llama_context_default_params", "n_outputs_max_per_seq", 0),
            ("llama_model_default_params", "use_extra_bufts", False),
            ("llama_model_default_params", "n_gpu_layers", 0),
        ],
    )
    def test_a_default_elsewhere_is_seen(self, api, function, field, value):
        def other():
            found = getattr(api, function)()
            setattr(found, field, value)
            return found

        assert not llama_api.has_known_layout(SimpleNamespace(**{**vars(api), function: other}))


def test_all_that_a_device_calls_is_declared():
    sources = (Path(module.__file__).read_text() for module in (llama, llamacpp))
    called = {name for source in sources for name in re.findall(r"\bllama_cpp\.(llama_\w+)", source)}
    quantizer = {
        "llama_model_quantize",
        "llama_model_quantize_default_params",
    }  # only a server widens its target
    assert called - quantizer - {"llama_log_callback"} == FUNCTIONS.keys()
