"""llama.cpp and ONNX Runtime with the committed draft model, under the contract and against a recomputation."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edge_client.drafters import DRAFTERS, llamacpp
from edge_client.drafters.base import DrafterOptions
from opensled.core.errors import EngineError, NotFound, UnsupportedModel, UsageError, VocabularyMismatch
from opensled.core.messages import DraftToken, SamplingParams
from opensled.core.noise import gumbel, noise_key
from opensled.core.penalties import Emitted
from opensled.core.sampling import Sampler
from opensled.models import llama, llama_api
from opensled.models.llama_api import BUILT, FUNCTIONS, PREBUILT
from opensled.process.registry import Registry, remedy
from tests.absent import without
from tests.drafter_contract import BLOCK, DrafterContract, pull
from tests.tiny_drafts import TINY_DRAFT, greedy_drafts, tiny_info

GGUF = TINY_DRAFT / "tiny-draft-q8_0.gguf"
ONNX = TINY_DRAFT / "tiny-draft-int8.onnx"


@dataclass(frozen=True)
class RecordingSampler(Sampler):
    """Keeps the logits behind every draw, by position."""

    rows: dict[int, np.ndarray] = field(default_factory=dict)

    def draw(self, logits: np.ndarray, position: int, emitted: Emitted | None = None) -> DraftToken:
        self.rows[position] = logits.copy()
        return super().draw(logits, position, emitted)


def reference_draw(logits: np.ndarray, draw: Sampler, position: int) -> int:
    """The draft token in plain Python: the noisy best of the 64 likeliest."""
    likely = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:64]
    temperature = draw.params.temperature
    if not temperature:
        return likely[0]
    noise = gumbel(draw.key, position, np.array(likely))
    return likely[int(np.argmax(logits[likely].astype(np.float64) / temperature + noise))]


every_temperature = pytest.mark.parametrize("temperature", [pytest.param(0, marks=pytest.mark.long), 0.8])


class ModelContract(DrafterContract):
    """What drafters with the committed tiny draft model keep to, besides the contract."""

    kind: str
    library: str
    pattern: str
    path = TINY_DRAFT
    rounding: float  # largest difference of a logit, in standard deviations of its row

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def installed(cls):
        pytest.importorskip(cls.library)

    @pytest.fixture(scope="class")
    @classmethod
    def factory(cls):
        # Of long texts as well it reads all, however slow this machine is.
        return DRAFTERS.get(cls.kind)(str(cls.path), threads=1, options=DrafterOptions(window=1 << 20))

    @pytest.fixture(scope="class")
    @classmethod
    def logits_of(cls):
        raise NotImplementedError

    def sampler(self, temperature: float = 0.8, seed: int = 1) -> Sampler:
        return RecordingSampler(SamplingParams(temperature=temperature), noise_key(seed))

    @pytest.fixture
    def assert_on_path(self, logits_of):
        """Every draw must come from logits that are, but for rounding, those of a recomputed sequence."""

        def check(drafter, truth, draw, count=BLOCK):
            sequence = list(truth)
            for token in pull(drafter, count):
                row, expected = drafter.sampler.rows[len(sequence)], logits_of(sequence)
                assert np.abs(row - expected).max() <= self.rounding * expected.std()
                assert token.id == reference_draw(row, draw, len(sequence))
                sequence.append(token.id)
            assert len(sequence) == len(truth) + count

        return check

    @every_temperature
    @pytest.mark.parametrize("accepted", [0, 1, BLOCK - 1, BLOCK])
    @pytest.mark.parametrize("next_agrees", [True, False])
    def test_after_a_verdict_drafts_like_a_fresh_one(
        self, drafter, assert_on_path, temperature, accepted, next_agrees
    ):
        super().test_after_a_verdict_drafts_like_a_fresh_one(
            drafter, assert_on_path, temperature, accepted, next_agrees
        )

    @every_temperature
    def test_drafts_the_models_own_continuation(self, drafter, assert_on_path, temperature):
        draw = self.sampler(temperature)
        drafter.begin(self.prompt, draw)
        assert_on_path(drafter, self.prompt, draw, 12)

    def test_a_long_prompt_goes_in_chunks(self, drafter, assert_on_path):
        prompt = (self.prompt * 20)[:900]
        drafter.begin(prompt, self.sampler())
        assert_on_path(drafter, prompt, self.sampler(), 3)

    def test_ends_with_the_context(self, drafter):
        prompt = (self.prompt * 30)[: drafter.context_length - 3]
        drafter.begin(prompt, self.sampler())
        assert len(pull(drafter, 10)) == 3

    def test_accepts_its_targets_vocabulary(self, factory):
        factory.fit(tiny_info())

    def test_refuses_another_vocabulary(self, factory):
        with pytest.raises(VocabularyMismatch, match=r"tiny-draft.*2048 tokens.*'big' \(2047 tokens\)"):
            factory.fit(tiny_info(model_id="big", vocab_size=2047))

    def test_a_closed_drafter_says_so(self, factory):
        drafter = factory.create()
        drafter.close()
        drafter.begin(self.prompt, self.sampler())
        with pytest.raises(EngineError, match="closed"):
            pull(drafter)

    def test_takes_the_file_itself(self):
        assert DRAFTERS.get(self.kind)(str(next(self.path.glob(self.pattern))), threads=1).name

    @pytest.mark.parametrize("files", [0, 2])
    def test_a_folder_must_hold_one_model(self, tmp_path, files):
        for number in range(files):
            (tmp_path / self.pattern.replace("*", str(number))).touch()
        with pytest.raises(
            NotFound, match="several|does not begin with GGUF" if files else "has no|is empty"
        ):
            DRAFTERS.get(self.kind)(str(tmp_path))

    def test_names_what_is_missing(self, tmp_path):
        for nothing in ("", str(tmp_path / "nothing")):
            with pytest.raises(NotFound, match=r"no model |is missing"):
                DRAFTERS.get(self.kind)(nothing)
        with pytest.raises(NotFound, match=f"is no {re.escape(self.pattern)} file"):
            DRAFTERS.get(self.kind)(str(TINY_DRAFT / "config.json"))

    @pytest.mark.parametrize("content", [b"", b"no model at all"])
    def test_refuses_a_damaged_file(self, tmp_path, content):
        path = tmp_path / self.pattern.replace("*", "broken")
        path.write_bytes(content)
        with pytest.raises((UnsupportedModel, NotFound), match="broken"):
            DRAFTERS.get(self.kind)(str(path))

    @pytest.fixture
    def environment(self) -> dict[str, str]:
        """More variables for a Python that drafts alike."""
        return {}

    def test_an_interpreter_that_exits_without_closing_exits_cleanly(self, environment):
        script = (
            "import sys; from edge_client.drafters import DRAFTERS; from tests.test_drafters import *\n"
            "first = DRAFTERS.get(sys.argv[1])(sys.argv[2], 1); drafter = first.create(); del first\n"
            "drafter.begin([1, 2, 3], a_sampler()); print(len(pull(drafter)))"
        )
        command = [sys.executable, "-c", script, self.kind, str(self.path)]
        environment = {**os.environ, **environment}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert (done.returncode, done.stdout, done.stderr) == (0, "6\n", "")


class TestLlamaCpp(ModelContract):
    kind, library, pattern = "llamacpp", "llama_cpp", "*.gguf"
    rounding = 0.1  # its kernels for one and for many rows round Q8_0 differently: 0.036 seen

    @pytest.fixture(scope="class")
    @classmethod
    def logits_of(cls):
        from tests.plain_llama import plain_llama

        model = plain_llama(GGUF, n_ctx=1024, n_threads=1)

        def logits(sequence):
            model.reset()
            model.eval(sequence)
            return model.scores[len(sequence) - 1]

        yield logits
        model.close()

    def test_recomputes_all_when_the_cache_cannot_go_back(self, drafter, assert_on_path, monkeypatch):
        from opensled.models.llama import llama_cpp

        drafter.begin(self.prompt, self.sampler())
        pull(drafter)
        monkeypatch.setattr(llama_cpp, "llama_memory_seq_rm", lambda *_: False)
        drafter.commit([5])
        assert drafter.computed == 0
        assert_on_path(drafter, [*self.prompt, 5], self.sampler())


class TestOnnx(ModelContract):
    kind, library, pattern = "onnx", "onnxruntime", "*.onnx"
    rounding = 0.1  # activations rounded to int8 may jump by a step: 0.018 seen, mostly 1e-6

    @pytest.fixture(scope="class")
    @classmethod
    def logits_of(cls):
        import onnxruntime as ort

        session = ort.InferenceSession(str(ONNX))
        config = json.loads((TINY_DRAFT / "config.json").read_text())
        empty = np.zeros((1, config["num_key_value_heads"], 0, config["head_dim"]), np.float32)
        caches = {node.name: empty for node in session.get_inputs() if node.name.startswith("past")}

        def logits(sequence):
            prompt = np.array([sequence], np.int64)
            feeds = {"input_ids": prompt, "attention_mask": np.ones_like(prompt), **caches}
            return session.run(["logits"], feeds)[0][0, -1]

        return logits

    def test_refuses_a_graph_that_concatenates_its_cache(self, tmp_path):
        path = tmp_path / "model.onnx"
        path.write_bytes(ONNX.read_bytes().replace(b"GroupQueryAttention", b"SomeOtherAttention!"))
        with pytest.raises(UnsupportedModel, match="GroupQueryAttention"):
            DRAFTERS.get("onnx")(str(path))

    def test_says_which_files_belong_beside_the_graph(self, tmp_path):
        shutil.copy(ONNX, tmp_path)
        with pytest.raises(UnsupportedModel, match=r"config\.json"):
            DRAFTERS.get("onnx")(str(tmp_path))
        shutil.copy(TINY_DRAFT / "config.json", tmp_path)
        with pytest.raises(NotFound, match=r"tokenizer\.json"):
            DRAFTERS.get("onnx")(str(tmp_path), threads=1).fit(tiny_info())


# -- llama.cpp from the wheel xllamacpp ---------------------------------------------------------------------------


ROOT = Path(__file__).parents[1]
NO_WHEEL = pytest.mark.skipif(
    find_spec(PREBUILT) is None, reason="xllamacpp is not installed: extra prebuilt"
)
GREEDY_DRAFTS = """
import json, sys
from edge_client.drafters import DRAFTERS
from opensled.models import llama_api
from tests.tiny_drafts import greedy_drafts
print(json.dumps([llama_api.package(), greedy_drafts()]))
"""


@pytest.fixture(scope="module")
def wheel_only(tmp_path_factory) -> dict[str, str]:
    """Variables of a Python that has no llama_cpp."""
    return without(tmp_path_factory.mktemp("wheel"), BUILT)


def run(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment, "OPENSLED_NO_CONFIG": "1"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables, cwd=ROOT)


@NO_WHEEL
class TestContract(TestLlamaCpp):
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
    # Only a server widens its target
    quantizer = {"llama_model_quantize", "llama_model_quantize_default_params"}
    assert called - quantizer - {"llama_log_callback"} == FUNCTIONS.keys()
