"""The manifests of deploy/kubernetes: Kubernetes takes them, `opensled serve` takes the command, the times fit."""

import asyncio
import json
import re
import shutil
import ssl
import subprocess
import urllib.request

import pytest
import yaml
from jsonschema import Draft202012Validator

from opensled.cli.config import options
from opensled.cli.main import CONFIGS, _parser
from tests.manifests import (
    ACCESS,
    FOLDER,
    METRICS_KEY,
    Pod,
    container,
    documents,
    manifest,
    option,
    pod_spec,
    write_access,
)
from tests.system import until
from verify_server.front.draining import longest_end
from verify_server.options.serve_config import ServeConfig

SCHEMA = json.loads((FOLDER / "schema.json").read_text())
LABELS = {"app.kubernetes.io/name": "opensled"}
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def faults(document):
    """What Kubernetes would refuse."""
    kind = SCHEMA["kinds"][f"{document['apiVersion']} {document['kind']}"]
    validator = Draft202012Validator({**kind, "$defs": SCHEMA["$defs"]})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


@pytest.mark.parametrize("document", documents(), ids=lambda each: each["kind"])
def test_kubernetes_takes_each_document(document):
    assert faults(document) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("readinessProbe", "readynessProbe"),
        ("terminationGracePeriodSeconds: 150", "terminationGracePeriodSeconds: 150s"),
        ("maxUnavailable: 0, ", "maxUnavailabel: 0, "),
        ("runAsNonRoot: true", 'runAsNonRoot: "yes"'),
    ],
)
def test_the_schema_finds_what_is_wrong(before, after):
    text = (FOLDER / "server.yaml").read_text()
    assert text.count(before) == 1
    (wrong, *_) = yaml.safe_load_all(text.replace(before, after))
    assert len(faults(wrong)) == 1


def test_opensled_takes_the_command():
    verb, *arguments = container()["args"]
    assert verb == "serve"
    given = _parser(verb, options(CONFIGS.get(verb))).parse_args(arguments)
    assert float(given.drain) == float(option("drain")) > ServeConfig.drain
    ports = {each["name"]: str(each["containerPort"]) for each in container()["ports"]}
    flags = {"grpc": "listen", "http": "http", "metrics": "metrics"}
    assert {name: option(flag).rpartition(":")[2] for name, flag in flags.items()} == ports


def test_there_is_time_to_drain():
    wait = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_spec()["terminationGracePeriodSeconds"] > wait + longest_end(float(option("drain")))


def test_a_rollout_and_a_node_that_is_emptied_leave_a_server():
    spec = manifest("Deployment")["spec"]
    assert spec["replicas"] >= 2 and spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert manifest("PodDisruptionBudget")["spec"]["minAvailable"] == spec["replicas"] - 1
    # A target that loads is not ready, and is not restarted: only /livez counts for that.
    assert all("livez" in container()[name]["httpGet"]["path"] for name in PROBES[:2])


def test_everything_selects_the_servers():
    spec = manifest("Deployment")["spec"]
    assert spec["template"]["metadata"]["labels"] == spec["selector"]["matchLabels"] == LABELS
    assert manifest("Service")["spec"]["selector"] == LABELS
    assert all(
        manifest(kind)["spec"]["selector"] == {"matchLabels": LABELS}
        for kind in ("PodDisruptionBudget", "PodMonitor")
    )


def test_ports_are_asked_by_names_that_exist():
    names = {each["name"] for each in container()["ports"]}
    asked = {container()[name]["httpGet"]["port"] for name in PROBES}
    asked |= {each["targetPort"] for each in manifest("Service")["spec"]["ports"]}
    asked |= {each["port"] for each in manifest("PodMonitor")["spec"]["podMetricsEndpoints"]}
    assert asked == names


def test_the_secret_has_what_is_read_of_it():
    there = set(manifest("Secret")["stringData"])
    files = {word.rpartition("/")[2] for word in container()["args"] if ACCESS in word}
    (scrape,) = manifest("PodMonitor")["spec"]["podMetricsEndpoints"]
    wanted = [scrape["authorization"]["credentials"], scrape["tlsConfig"]["ca"]["secret"]]
    assert files | {each["key"] for each in wanted} == there
    assert {each["name"] for each in wanted} == {manifest("Secret")["metadata"]["name"]}
    told = set(re.findall(r"--from-file=(\S+)", (FOLDER / "secret.yaml").read_text()))
    assert told == there


def test_the_rules_of_prometheus_know_the_job():
    (scrape,) = manifest("PodMonitor")["spec"]["podMetricsEndpoints"]
    (job,) = scrape["relabelings"]
    assert job["targetLabel"] == "job"
    (asked,) = set(
        re.findall(r'job=~"(opensled-\(\S+?\))"', (FOLDER.parent / "prometheus/rules.yml").read_text())
    )
    assert re.fullmatch(asked, job["replacement"])


def test_a_pod_may_do_nothing_but_compute_and_use_the_network():
    pod, own = pod_spec()["securityContext"], container()["securityContext"]
    dockerfile = (FOLDER.parent / "docker/verify.Dockerfile").read_text()
    assert pod["runAsNonRoot"] and f"--uid {pod['runAsUser']} " in dockerfile
    assert (
        pod["seccompProfile"] == {"type": "RuntimeDefault"} and not pod_spec()["automountServiceAccountToken"]
    )
    assert own["readOnlyRootFilesystem"] and own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    # Root owns a secret's files: they may be open to the group that the pod has by fsGroup, and to no others.
    (access,) = [each["secret"] for each in pod_spec()["volumes"] if each["name"] == "access"]
    assert access["defaultMode"] == 0o440 and pod["fsGroup"] == pod["runAsGroup"]


def test_no_variable_of_a_service_is_taken_for_an_option():
    """A Service named opensled has Kubernetes set OPENSLED_PORT=tcp://..., and more of these."""
    assert pod_spec()["enableServiceLinks"] is False


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_reads_them(tmp_path):
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": [path.name for path in FOLDER.glob("*.yaml")]})
    )
    for path in FOLDER.glob("*.yaml"):
        shutil.copy(path, tmp_path)
    shown = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert len(list(yaml.safe_load_all(shown.stdout))) == len(documents())


def test_each_file_says_that_it_is_for_production():
    for path in (*FOLDER.glob("*.yaml"), FOLDER.parent / "server/compose.yaml"):
        assert path.read_text().startswith("# Production: "), path
    assert (FOLDER.parents[1] / "docker-compose.yml").read_text().startswith("# Testbed, ")


def test_a_server_answers_the_probes_and_prometheus_as_the_manifests_ask(tmp_path):
    write_access(tmp_path)
    with Pod(tmp_path, ("--engine=tests.fake_target:load", "--model=tiny")) as pod:
        pod.process.wait_ready()
        asyncio.run(until(lambda: pod.probe("readinessProbe")[0] == 200))
        assert [pod.probe(name)[0] for name in PROBES] == [200] * 3
        (scrape,) = manifest("PodMonitor")["spec"]["podMetricsEndpoints"]
        url = f"{scrape['scheme']}://{pod.address('metrics')}{scrape['path']}"
        trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {METRICS_KEY}"})
        with urllib.request.urlopen(request, timeout=20, context=trusted) as reply:
            assert "opensled:draining 0.0" in reply.read().decode()
