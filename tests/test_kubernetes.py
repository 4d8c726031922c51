"""The manifests of deploy/kubernetes: Kubernetes takes them, their names and times fit."""

import json
import re
import shutil
import subprocess

import pytest
import yaml
from jsonschema import Draft202012Validator

from opensled.cli.config import options
from tests.manifests import ACCESS, FOLDER, container, documents, manifest, option, pod_spec
from verify_server.options.serve_config import ServeConfig

SCHEMA = json.loads((FOLDER / "schema.json").read_text())
LABELS = {"app.kubernetes.io/name": "opensled"}
SERVICES = [each for each in documents() if each["kind"] == "Service"]
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


def test_vllm_listens_for_devices_where_they_connect():
    """tests/vllm/test_deployment.py has vLLM read the command."""
    assert "--opensled" in container()["args"]
    ports = {each["name"]: str(each["containerPort"]) for each in container()["ports"]}
    assert ports == {"grpc": option("opensled-listen").rpartition(":")[2], "http": option("port")}
    set_there = {each["name"]: each.get("value") for each in container()["env"]}
    known = {item.variable for item in options(ServeConfig)}
    assert {name for name in set_there if name.startswith("OPENSLED_")} <= known
    assert set_there["VLLM_PLUGINS"] == "opensled"


def test_there_is_time_to_drain():
    wait = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_spec()["terminationGracePeriodSeconds"] > wait + float(option("shutdown-timeout"))


def test_a_rollout_and_a_node_that_is_emptied_leave_a_server():
    spec = manifest("Deployment")["spec"]
    assert spec["replicas"] >= 2 and spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert manifest("PodDisruptionBudget")["spec"]["minAvailable"] == spec["replicas"] - 1
    # A target that loads is not restarted.
    start = container()["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= spec["progressDeadlineSeconds"]


def test_everything_selects_the_servers():
    spec = manifest("Deployment")["spec"]
    assert spec["template"]["metadata"]["labels"] == spec["selector"]["matchLabels"] == LABELS
    assert all(each["spec"]["selector"] == LABELS for each in SERVICES)
    assert all(
        manifest(kind)["spec"]["selector"] == {"matchLabels": LABELS}
        for kind in ("PodDisruptionBudget", "PodMonitor")
    )


def test_ports_are_asked_by_names_that_exist():
    names = {each["name"] for each in container()["ports"]}
    asked = {container()[name]["httpGet"]["port"] for name in PROBES}
    asked |= {port["targetPort"] for each in SERVICES for port in each["spec"]["ports"]}
    asked |= {each["port"] for each in manifest("PodMonitor")["spec"]["podMetricsEndpoints"]}
    assert asked == names


def test_the_api_is_open_to_the_cluster_alone():
    """Its key guards not all paths."""
    outside = [each for each in SERVICES if each["spec"].get("type") == "LoadBalancer"]
    assert [port["targetPort"] for each in outside for port in each["spec"]["ports"]] == ["grpc"]


def test_the_secret_has_what_is_read_of_it():
    there = set(manifest("Secret")["stringData"])
    read = [*container()["args"], *(each.get("value", "") for each in container()["env"])]
    files = {word.rpartition("/")[2] for word in read if ACCESS in word}
    (key,) = [each["valueFrom"]["secretKeyRef"] for each in container()["env"] if "valueFrom" in each]
    (scrape,) = manifest("PodMonitor")["spec"]["podMetricsEndpoints"]
    wanted = [key, scrape["tlsConfig"]["ca"]["secret"]]
    assert files | {each["key"] for each in wanted} == there
    assert {each["name"] for each in wanted} == {manifest("Secret")["metadata"]["name"]}
    assert set(re.findall(r"--from-file=(\S+)", (FOLDER / "secret.yaml").read_text())) == there


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
