"""`opensled top`: figures between two samples, how they look at any width, and the command in a real terminal."""

import asyncio
import json
from contextlib import closing

import pytest

from lab.testbed.processes import Process
from opensled.cli.top import TopConfig, addresses, top
from opensled.cli.top_figures import figures
from opensled.cli.top_view import bar, frame, sparkline
from opensled.core.errors import OpenSledError, Unreachable, UsageError
from opensled.metrics.exposition import MetricsPort
from opensled.metrics.registry import Metric
from opensled.metrics.scrape import Between, scrape
from tests.answering import answering
from tests.commands import opensled
from tests.scraping import AFTER, BEFORE, GATEWAY, sample
from tests.serving import finish, linked, serving
from tests.terminal import Screen
from verify_server.front.server_metrics import metrics as server_metrics

SERVE = ("serve", "--engine", "tests.fake_target:load", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")


def test_figures_are_those_of_the_time_between():
    found = figures("hub:9410", Between(BEFORE, AFTER))
    assert found["seconds"] == 2.0 and found["kind"] == "server" and not found["draining"]
    assert (found["sessions"], found["absent"], found["places"]) == (9, 1, 256)
    assert (found["tokens_per_s"], found["unasked"]) == (200, 0.25)
    assert (found["acceptance"], found["draft_length"], found["too_late"]) == (0.61, 4, 0.04)
    assert (found["steps_per_s"], found["step_s"], found["busy"]) == (20, 0.025, 0.5)
    assert (found["step_sessions"], found["step_tokens"], found["prediction_error"]) == (4, 20, 0.04)
    assert found["hints"] == {"0": 0.25, "4": 0.75}
    assert (found["kv_tokens"], found["kv_used"], found["kv_cached"]) == (1600, pytest.approx(0.4), 0.1)
    assert (found["kv_evicted_per_s"], found["prefix_hits_per_s"], found["preemptions_per_s"]) == (64, 160, 1)
    assert found["refused"] == {"overloaded": 5} and found["refused_per_s"] == 5
    assert (found["failures_per_s"], found["opened_per_s"], found["resumed_per_s"]) == (1, 2, 1)


def test_a_server_that_was_restarted_counts_from_zero():
    between = Between(sample(1.0, steps_total=900), sample(2.0, steps_total=30))
    assert figures("x", between)["steps_per_s"] == 30


def test_a_server_that_does_nothing_has_nothing_to_tell():
    still = figures("x", Between(BEFORE, BEFORE))
    assert still["tokens_per_s"] == 0 and still["step_s"] is None and still["kv_used"] is None
    assert "none" in "\n".join(frame([still], {}, 80))


def test_the_panel_says_it_all():
    text = "\n".join(frame([figures("hub:9410", Between(BEFORE, AFTER))], {"hub:9410": [100, 200]}, 100))
    for phrase in (
        "hub:9410  qwen  serving",
        "9 of 256 places",
        "3 in the step  5 for their devices  1 for KV  1 without a reader",
        "200.0/s  22.2/s each  25 % without a draft  ▅█",
        "61 % accepted  4.0 tokens long  4 % too late",
        "25 % of 0  75 % of 4",
        "at rest   rested by the server's operator",
        "a step over 5 tokens takes 0 times one over 1 here: drafts would give 0.90x",
        "25 ms  4.0 sessions  20.0 tokens  busy 50 %  predicted to within 4 %",
        "████████▒▒░░░░░░░░░░  40 % of 1,600 tokens",
        "5.0/s overloaded",
        "1.0 failed answers/s",
    ):
        assert phrase in text, text
    assert "came during it" not in text  # nobody did


@pytest.mark.parametrize("width", [10, 24, 40, 60, 80, 132])
def test_no_line_is_wider_than_the_terminal(width):
    one = figures("hub:9410", Between(BEFORE, AFTER))
    gateway = figures("gate:9410", Between(GATEWAY, GATEWAY))
    broken = {"server": "gone:9410", "error": "no metrics at http://gone:9410/metrics: connection refused"}
    for shown in ([one], [gateway], [broken], [one, gateway, broken, one]):
        assert max(map(len, frame(shown, {}, width))) <= width
    words = "\n".join(frame([one], {}, 40)).split()
    assert set("\n".join(frame([one], {}, 132)).split()) <= set(words)  # lines are broken, nothing is lost


def test_several_servers_are_a_table_with_a_sum():
    one, two = (figures(name, Between(BEFORE, AFTER)) for name in ("hub:9410", "hub:9411"))
    broken = {"server": "gone:9410", "error": "no metrics: connection refused"}
    wide = frame([one, two, broken], {}, 132)
    assert wide[0].split()[:3] == ["server", "sessions", "tokens/s"] and wide[0].endswith("model")
    assert wide[1].endswith("qwen")
    assert wide[1].split()[:5] == ["hub:9410", "9", "200.0", "61", "%"]
    assert wide[3] == "gone:9410  no metrics: connection refused"
    assert wide[4].split() == ["all", "18", "400.0", "10.0"]
    assert frame([one, two], {}, 30)[0].split() == ["server", "sessions", "tokens/s"]


def test_a_gateway_shows_its_replicas():
    found = figures("gate:9410", Between(GATEWAY, GATEWAY))
    assert (found["kind"], found["sessions"], found["places"]) == ("gateway", 3, 16)
    text = frame([found], {}, 100)
    assert text[0] == "gate:9410  gateway" and "3 of 16 places" in text[1]
    assert any(line.split()[:2] == ["a", "3"] and line.endswith("serving") for line in text)
    assert any(line.split()[:2] == ["b", "0"] and line.endswith("draining") for line in text)


def test_bars_and_graphs():
    assert bar(0) == "░" * 20 and bar(1) == "█" * 20 and bar(0.5, 0.9) == "█" * 10 + "▒" * 10
    assert sparkline([0, 5, 10]) == "▁▅█" and sparkline([]) == "" and sparkline([0, 0]) == "▁▁"


async def test_a_real_server_is_read_back():
    async with serving() as (manager, address), linked(address) as link:
        with closing(MetricsPort("127.0.0.1:0", server_metrics(manager))) as port:
            before = await asyncio.to_thread(scrape, port.address)
            await finish(link)
            found = figures(port.address, Between(before, await asyncio.to_thread(scrape, port.address)))
    # The seconds, a few hundredths, are told in thousandths.
    assert found["tokens_per_s"] * found["seconds"] == pytest.approx(20, rel=0.05) and found["unasked"] == 1.0
    assert found["model"] == "fake"
    assert found["kv_tokens"] == 400 and found["step_sessions"] == 1.0 and found["places"] == 3
    assert found["step_s"] > 0 and set(found["waiting"]) >= {"device", "step", "kv", "budget"}


def test_whoever_else_answers_is_named():
    other = b"# TYPE other_total counter\nother_total 3\n"
    for status, body, words in (
        (404, b"", "answers 404"),
        (200, b"<html>hello</html>", "has no metrics of OpenSLED|metrics that cannot be read"),
        (200, other, "has no metrics of OpenSLED"),
        (200, b"", "has no metrics of OpenSLED"),
    ):
        with (
            answering(lambda path, sent, told=(status, body): told) as address,
            pytest.raises(OpenSledError, match=words) as caught,
        ):
            scrape(address)
        assert not isinstance(caught.value, Unreachable) and address in str(caught.value)


def test_a_device_is_no_server():
    with (
        answering(
            lambda path, sent: (200, b"# TYPE opensled:drafters gauge\nopensled:drafters 4\n")
        ) as address,
        pytest.raises(
            OpenSledError, match=f"{address}/metrics has the metrics of a device; opensled top shows"
        ),
    ):
        scrape(address)


async def test_the_port_of_devices_is_no_metrics_port():
    async with serving() as (_, address):
        with pytest.raises(OpenSledError, match="does not speak HTTP; name the metrics port") as caught:
            await asyncio.to_thread(scrape, address)
        assert str(caught.value).isprintable()


def test_nobody_there_is_unreachable_with_the_next_step():
    with pytest.raises(Unreachable, match=r"refused; start the server with --metrics 127\.0\.0\.1:1, or"):
        scrape("127.0.0.1:1")


def test_addresses_are_checked():
    assert addresses("a:1, b:2,a:1,") == ["a:1", "b:2"]
    assert addresses("5,a") == ["127.0.0.1:5", "a:9410"]
    for bad in ("", " , ", "a:x", "a:1,b:"):
        with pytest.raises(UsageError):
            addresses(bad)


def test_one_look_as_json_and_as_text(capsys):
    metrics = [
        Metric("tokens_committed_total", "Tokens.", lambda: 7),
        Metric("kv_evicted_tokens_total", "Tokens.", lambda: 16),
    ]
    with closing(MetricsPort("127.0.0.1:0", metrics)) as port:
        assert top(TopConfig(metrics=port.address, interval=0.05, json=True)) == 0
        (found,) = json.loads(capsys.readouterr().out)["servers"]
        assert found["server"] == port.address and found["tokens_per_s"] == 0 and found["seconds"] >= 0.05
        assert top(TopConfig(metrics=port.address, interval=0.05)) == 0  # no terminal: one look
        assert capsys.readouterr().out.startswith(f"{port.address}  serving\nsessions")
        with pytest.raises(Unreachable):  # after the rest was told
            top(TopConfig(metrics=f"{port.address},127.0.0.1:1", interval=0.05, json=True))
        told = json.loads(capsys.readouterr().out)["servers"]
        assert "tokens_per_s" in told[0] and "refused" in told[1]["error"]


def test_the_exit_code_of_a_script():
    run = opensled("top", "--metrics", "127.0.0.1:1")
    assert run.returncode == 5 and run.stdout == "" and run.stderr.count("\n") == 1
    assert "start the server with --metrics" in run.stderr


def metrics_address(server):
    (line,) = (line for line in server.lines if line.startswith("metrics on "))
    return line.split("//")[1].split("/")[0]


def test_live_in_a_terminal_until_the_server_goes_and_q_is_pressed():
    with Process(SERVE) as server:
        server.wait_ready()
        address = metrics_address(server)
        with Screen("top", "--metrics", address, "--interval", "0.1", columns=70) as screen:
            screen.expect("\x1b[?1049h")
            screen.expect("q quits")
            screen.expect("0 of 256 places")
            screen.expect("q quits")  # drawn again
            server.stop()
            screen.expect("connection refused")
            screen.type("xq")
            assert screen.finish() == 0
            assert screen.output.endswith("\x1b[?25h\x1b[?1049l")


def test_live_without_any_server_says_so_at_once():
    with Screen("top", "--metrics", "127.0.0.1:1") as screen:
        assert screen.finish() == 5
        assert (
            "no metrics at http://127.0.0.1:1/metrics" in screen.text and "\x1b[?1049h" not in screen.output
        )
