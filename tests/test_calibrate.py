"""`opensled profile calibrate`: what it measures, what it writes, and who reads that."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_client.device.config import CalibrateConfig
from edge_client.doctor import draft_speed
from edge_client.doctor.calibrate import calibrate, warnings
from edge_client.doctor.draft_speed import SpeedReading, fastest, measure, thread_counts
from edge_client.drafters.threads import draft_threads
from hw_profiles import calibration, catalog
from hw_profiles.detect import detect, usable_cores
from opensled.core.errors import NotFound, UsageError
from opensled.core.messages import DraftToken
from tests.serving import serving

ROOT = Path(__file__).resolve().parents[1]
NOBODY = "127.0.0.1:1"


class Machine:
    """A clock, and drafters that take their time by it: seconds per draft token by number of threads."""

    def __init__(self, token_s, prompt_s=0.001, context=4096):
        self.now, self.token_s, self.prompt_s = 1000.0, token_s, prompt_s
        self.context = context
        self.made, self.open = [], 0

    def monotonic(self):
        return self.now

    def __call__(self, threads):
        self.made.append(threads)
        return Made(self, threads)


class Made:
    """The factory and the drafter of one number of threads."""

    def __init__(self, machine, threads):
        self.machine, self.threads = machine, threads

    def create(self):
        self.machine.open += 1
        return self

    def begin(self, prompt, sampler):
        self.length = len(prompt)
        self.machine.now += len(prompt) * self.machine.prompt_s

    def propose(self):
        token_s = self.machine.token_s[self.threads]
        for index in range(self.machine.context - self.length):
            self.machine.now += token_s
            yield DraftToken(7 + index)

    def close(self):
        self.machine.open -= 1


@pytest.fixture
def measured(monkeypatch):
    def run(machine, most=2):
        monkeypatch.setattr(draft_speed, "time", machine)
        started = machine.now
        speed = measure(machine, most, lambda words: None)
        assert machine.open == 0
        return speed, machine.now - started

    return run


# -- measuring -------------------------------------------------------------------------------------------


def test_a_second_thread_that_makes_it_slower_is_not_used(measured):
    speed, _ = measured(Machine({1: 0.002, 2: 0.1}))
    assert speed.threads == 1
    assert speed.decode == pytest.approx([500.0] * len(speed.decode))
    assert speed.decode_per_s[2] == pytest.approx([10.0] * len(speed.decode_per_s[2]))


def test_more_threads_are_used_while_they_help(measured):
    speed, _ = measured(Machine({1: 0.04, 2: 0.021, 3: 0.0205, 4: 0.015}), most=4)
    assert speed.threads == 4 and set(speed.decode_per_s) == {1, 2, 3, 4}
    assert measured(Machine({1: 0.04, 2: 0.021, 3: 0.0205}), most=3)[0].threads == 2


def test_a_thread_that_is_descheduled_now_and_then_counts():
    steady, hiccups = [100.0] * 4, [130.0, 130.0, 130.0, 5.0]
    assert fastest({1: steady, 2: hiccups}) == 1


def test_a_prompt_is_read_as_long_as_the_time_allows(measured):
    quick, _ = measured(Machine({1: 0.01}, prompt_s=0.001), most=1)
    assert quick.prompt == 512 and quick.prefill_per_s[0] == pytest.approx(512 / 0.522)
    slow, _ = measured(Machine({1: 0.1}, prompt_s=0.02), most=1)
    assert slow.prompt == 64
    assert measured(Machine({1: 0.01}, context=300), most=1)[0].prompt == 256


@pytest.mark.parametrize(
    ("rate", "prefill", "most", "seconds"),
    [(20, 80, 4, 22), (5, 20, 4, 30), (60, 500, 8, 22), (5000, 50000, 2, 8)],
)
def test_it_is_done_in_about_twenty_seconds(measured, rate, prefill, most, seconds):
    machine = Machine(dict.fromkeys(range(1, most + 1), 1 / rate), prompt_s=1 / prefill)
    assert measured(machine, most)[1] < seconds


def test_drafters_that_have_nothing_to_measure(measured):
    with pytest.raises(UsageError, match="has no model to measure"):
        measured(Machine({1: 0.01}, context=0), most=1)
    with pytest.raises(UsageError, match="larger context"):
        measured(Machine({1: 0.01}, context=9), most=1)
    with pytest.raises(UsageError, match="too small for 64 tokens"):
        measured(Machine({1: 0.01}, context=64), most=1)


def test_numbers_of_threads():
    assert thread_counts(1) == [1]
    assert thread_counts(6) == [1, 2, 3, 4, 6]
    assert thread_counts(12) == [1, 2, 3, 4, 6, 8, 12]


def test_a_busy_machine_is_told_of():
    settled, torn = ([100.0, 101, 99, 100], [100.0, 20, 90, 30])
    told = [
        warnings(SpeedReading(1, {1: rates}, 64, [1.0]), load)
        for rates, load in ((settled, 0.1), (torn, 0.1), (settled, 99.0))
    ]
    assert told[0] == [] and "differ by" in told[1][0] and "load 99.0" in told[2][0]


# -- the command -----------------------------------------------------------------------------------------


def run(*arguments, **environ):
    command = [sys.executable, "-m", "opensled", "profile", "calibrate", *arguments]
    environment = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=ROOT)


@pytest.mark.timed
async def test_a_real_draft_model_and_a_real_link(own_calibration):
    async with serving() as (_, address):
        address, done = address, await asyncio.to_thread(run, "--server", address, "--json")
    told = json.loads(done.stdout)
    profile = calibration.own_profile()
    measured = profile.calibrated["llamacpp:tiny-draft"]
    assert told["path"] == str(own_calibration) and told["name"] == profile.name == detect().name
    assert profile.drafts["tiny-draft"].decode_per_s.typical > 100
    assert profile.drafts["tiny-draft"].prefill_per_s.typical > profile.drafts["tiny-draft"].decode_per_s.min
    assert list(measured.decode_per_s) == [str(count) for count in thread_counts(usable_cores())]
    assert 0 < profile.servers[address].rtt_ms.typical < 1000
    assert draft_threads(0, "llamacpp", "tiny-draft") == measured.threads


def test_a_machine_without_a_server_is_measured_all_the_same(tmp_path):
    out = tmp_path / "new" / "mine.toml"
    done = run("--server", NOBODY, "--out", str(out), "--drafter", "onnx", OPENSLED_NO_CONFIG="1")
    assert done.returncode == 0 and "the link is not measured: no server answers" in done.stdout
    assert "decode" in done.stdout and "threads, fastest" in done.stdout
    profile = catalog.device(str(out))
    assert profile.servers == {} and "onnx:tiny-draft" in profile.calibrated
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
