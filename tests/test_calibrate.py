"""`opensled profile calibrate`: what it measures and writes, who reads that, and where it is kept."""

import asyncio
import json
import re
from pathlib import Path

import pytest
import tomllib

from edge_client.device.config import CalibrateConfig
from edge_client.doctor import draft_speed
from edge_client.doctor.calibrate import calibrate, warnings
from edge_client.doctor.draft_speed import SpeedReading, measure
from edge_client.drafters.threads import model_drafter
from hw_profiles import calibration, catalog
from hw_profiles.detect import Board, detect
from hw_profiles.profiles import DraftSpeed, MeasuredLink, Quantity
from opensled.core.errors import NotFound, UsageError
from opensled.core.messages import DraftToken
from tests.commands import opensled
from tests.golden_boards import plant
from tests.serving import serving

ROOT = Path(__file__).resolve().parents[1]
NOBODY = "127.0.0.1:1"


class Machine:
    """A clock, and a drafter that takes its time by it: seconds per draft token. The factory of that drafter, too."""

    def __init__(self, token_s, prompt_s=0.001, context=4096):
        self.now, self.token_s, self.prompt_s = 1000.0, token_s, prompt_s
        self.context, self.open = context, 0

    def monotonic(self):
        return self.now

    def create(self):
        self.open += 1
        return self

    def begin(self, prompt, sampler):
        self.length = len(prompt)
        self.now += len(prompt) * self.prompt_s

    def propose(self):
        for index in range(self.context - self.length):
            self.now += self.token_s
            yield DraftToken(7 + index)

    def close(self):
        self.open -= 1


@pytest.fixture
def measured(monkeypatch):
    def run(machine):
        monkeypatch.setattr(draft_speed, "time", machine)
        started = machine.now
        speed = measure(machine, lambda words: None)
        assert machine.open == 0
        return speed, machine.now - started

    return run


# -- measuring -------------------------------------------------------------------------------------------


def test_a_prompt_is_read_as_long_as_the_time_allows(measured):
    quick, _ = measured(Machine(0.01, prompt_s=0.001))
    assert quick.prompt == 512 and quick.prefill_per_s[0] == pytest.approx(512 / 0.522)
    assert quick.decode == pytest.approx([100.0] * len(quick.decode))
    slow, _ = measured(Machine(0.1, prompt_s=0.02))
    assert slow.prompt == 64
    assert measured(Machine(0.01, context=300))[0].prompt == 256


@pytest.mark.parametrize(
    ("rate", "prefill", "seconds"), [(20, 80, 12), (5, 20, 20), (60, 500, 12), (5000, 50000, 5)]
)
def test_it_is_done_in_about_ten_seconds(measured, rate, prefill, seconds):
    assert measured(Machine(1 / rate, prompt_s=1 / prefill))[1] < seconds


def test_drafters_that_have_nothing_to_measure(measured):
    with pytest.raises(UsageError, match="has no model to measure"):
        measured(Machine(0.01, context=0))
    with pytest.raises(UsageError, match="larger context"):
        measured(Machine(0.01, context=9))
    with pytest.raises(UsageError, match="too small for 64 tokens"):
        measured(Machine(0.01, context=64))


def test_a_busy_machine_is_told_of():
    settled, torn = ([100.0, 101, 99, 100], [100.0, 20, 90, 30])
    told = [
        warnings(SpeedReading(rates, 64, [1.0]), load)
        for rates, load in ((settled, 0.1), (torn, 0.1), (settled, 99.0))
    ]
    assert told[0] == [] and "differ by" in told[1][0] and "load 99.0" in told[2][0]


# -- the command -----------------------------------------------------------------------------------------


def run(*arguments, **environ):
    return opensled("profile", "calibrate", *arguments, variables=environ, cwd=ROOT)


@pytest.mark.timed
async def test_a_real_draft_model_and_a_real_link(own_calibration):
    async with serving() as (_, address):
        address, done = address, await asyncio.to_thread(run, "--server", address, "--json")
    told = json.loads(done.stdout)
    profile = calibration.own_profile()
    assert told["path"] == str(own_calibration) and told["name"] == profile.name == detect().name
    assert profile.drafts["tiny-draft"].decode_per_s.typical > 100
    assert profile.drafts["tiny-draft"].prefill_per_s.typical > profile.drafts["tiny-draft"].decode_per_s.min
    assert 0 < profile.servers[address].rtt_ms.typical < 1000


def test_a_machine_without_a_server_is_measured_all_the_same(tmp_path):
    out = tmp_path / "new" / "mine.toml"
    done = run("--server", NOBODY, "--out", str(out), "--drafter", "onnx", OPENSLED_NO_CONFIG="1")
    assert done.returncode == 0 and "the link is not measured: no server answers" in done.stdout
    assert "decode" in done.stdout
    profile = catalog.device(str(out))
    assert profile.servers == {} and ": onnx tiny-draft, " in profile.drafts["tiny-draft"].decode_per_s.source
    assert done.stdout.splitlines()[-1] == f"written to {out}"


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        (CalibrateConfig(drafter="lookup"), UsageError, "has no model to measure"),
        (CalibrateConfig(out="/proc/here/mine.toml"), UsageError, "cannot be made"),
        (CalibrateConfig(draft_model="none such", server=NOBODY), NotFound, "none such"),
        (CalibrateConfig(token_file="/nowhere/token"), NotFound, "token"),
    ],
)
def test_what_cannot_be_measured(config, error, said, own_calibration):
    with pytest.raises(error, match=said):
        calibrate(config)
    assert not own_calibration.exists()


def test_a_machine_without_configuration_files_needs_a_place(monkeypatch):
    monkeypatch.setenv("OPENSLED_NO_CONFIG", "1")
    with pytest.raises(UsageError, match="--out FILE"):
        calibrate(CalibrateConfig())


# -- the profile of this machine --------------------------------------------------------------------------------


def a_profile(name="", **changes):
    board = detect()
    one = Quantity(12.5, 10.0, 15.25, 'it\'s said in "C:\\\\here", 50 °C')
    base = calibration.baseline(board)
    told = {
        "drafts": {"135m": DraftSpeed("135m", one, one)},
        "servers": {"hub:7411": MeasuredLink("now", one, 0.125)},
    }
    return catalog.DeviceProfile(
        **{**vars(base), **told, "id": "this-machine", "name": name or board.name, **changes}
    )


def test_what_is_written_is_read_back(own_calibration):
    profile = a_profile()
    calibration.write(profile, own_calibration)
    assert catalog.device("this-machine") == profile == calibration.own_profile()
    assert "this-machine" in catalog.names("devices") and list(own_calibration.parent.iterdir()) == [
        own_calibration
    ]


def test_a_board_keeps_what_is_published_of_other_drafts(own_calibration, tmp_path):
    board = detect(plant("pi-5", tmp_path / "pi"))
    base = calibration.baseline(board)
    assert base.drafts["1b"] == catalog.device("pi-5").drafts["1b"]
    assert (base.name, base.memory_gib) == ("Raspberry Pi 5 Model B Rev 1.0", 7.9)
    unknown = calibration.baseline(Board("a PC", "", "", "x86", 8, (), 16.0))
    assert unknown.drafts == {} and unknown.busy_w.source.startswith("not measured")


def test_a_home_folder_that_another_machine_shares(own_calibration):
    calibration.write(a_profile(name="another machine"), own_calibration)
    assert calibration.own_profile() is None
    assert calibration.baseline(detect()).drafts == {}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("cores = ", "kernels = "),
        lambda text: text.replace("jitter_ms = 0.125", "jitter_ms = 'one'"),
        lambda text: text.replace("decode_per_s = {", "decode_per_s = [") + "x",
        lambda text: text.replace("jitter_ms = 0.125\n", ""),
    ],
)
def test_a_file_that_was_damaged_is_named_and_not_believed(own_calibration, damage):
    calibration.write(a_profile(), own_calibration)
    own_calibration.write_text(damage(own_calibration.read_text()))
    with pytest.raises(UsageError, match=re.escape(str(own_calibration))):
        calibration.own_profile()
    assert calibration.baseline(detect()).servers == {}  # the next calibration replaces it


def test_profiles_of_ones_own_win_over_packaged_ones(own_calibration):
    folder = own_calibration.parents[1] / "links"
    folder.mkdir(parents=True)
    packaged = tomllib.loads((Path(catalog.__file__).parent / "links.toml").read_text())["lte"]
    own = "\n".join(f"{key} = {json.dumps(value)}" for key, value in packaged.items())
    (folder / "lte.toml").write_text(own.replace('"LTE"', '"my LTE"'))
    (folder / "cellar.toml").write_text(own)
    assert catalog.link("lte").name == "my LTE"
    assert "cellar" in catalog.names("links") and catalog.names("links").count("lte") == 1


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "0.5b"),
        ("/models/Llama-3.2-1B-Instruct-Q4_K_M.gguf", "1b"),
        ("SmolLM2-135M", "135m"),
        ("tiny-draft", "tiny-draft"),
        ("my-model.gguf", "my-model"),
        ("phi-4bit.gguf", "phi-4bit"),
    ],
)
def test_the_size_in_a_models_name(model, size):
    assert calibration.size_of(model) == size


@pytest.mark.parametrize(
    ("drafter", "model"),
    [
        ("llamacpp", "llamacpp"),
        ("chain:cacheback,llamacpp", "llamacpp"),
        ("accelerated:onnx", "onnx"),
        ("chain:lookup,cacheback", ""),
        ("none", ""),
        ("mine.llamacpp:Factory", ""),
    ],
)
def test_the_model_in_a_chain(drafter, model):
    assert model_drafter(drafter) == model
