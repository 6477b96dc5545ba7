"""KubeRay's manifests: what they must say, and that what is wrong with one is found and named before it is sent."""

import copy
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from cluster.config import ClusterConfig
from cluster.render import kuberay, rules
from cluster.submit_config import SubmitConfig
from data_prep.redact import redact
from tests.cluster.rendering import EXPERIMENT, HERE, TOKEN, cluster, job

ROOT = Path(__file__).resolve().parents[2]


def documents(config: ClusterConfig | None = None) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(kuberay.render(job(), config or cluster(), HERE).text))


def ray_job(config: ClusterConfig | None = None) -> dict[str, Any]:
    return documents(config)[1]


def pods(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return spec["headGroupSpec"]["template"]["spec"], spec["workerGroupSpecs"][0]["template"]["spec"]


def test_a_job_has_no_findings_and_runs_the_words_on_its_own_configuration() -> None:
    words = ("python", "-m", "pipeline.cli", "train", "/etc/electra/experiment.yaml", "--out", "/shared/runs/a b")
    rendered = kuberay.render(job(*words), cluster(), HERE)
    assert rendered.findings == ()
    assert rendered.command == ("kubectl", "apply", "-f", "-")
    config_map, found = yaml.safe_load_all(rendered.text)
    assert config_map["data"] == {"experiment.yaml": EXPERIMENT}
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayJob")
    assert found["metadata"]["name"] == found["spec"]["jobId"] == "electra-tiny-train-0123abcd"
    assert shlex.split(found["spec"]["entrypoint"]) == list(words)
    head, _ = pods(found["spec"]["rayClusterSpec"])
    volume = next(volume for volume in head["volumes"] if "configMap" in volume)
    mount = next(mount for mount in head["containers"][0]["volumeMounts"] if mount["name"] == volume["name"])
    assert f"{mount['mountPath']}/experiment.yaml" == kuberay.config_path(SubmitConfig(), "any")
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]


def test_stopping_leaves_time_to_save_everywhere() -> None:
    spec = ray_job(cluster(stop_seconds=450))["spec"]
    assert yaml.safe_load(spec["runtimeEnvYAML"]) == {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "450"}}
    head, worker = pods(spec["rayClusterSpec"])
    assert head["terminationGracePeriodSeconds"] > 450 and worker["terminationGracePeriodSeconds"] > 450
    hook = head["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["python", "-m", "cluster.leaving", "450"]
    drains = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
    assert {"name": drains, "value": "450"} in worker["containers"][0]["env"]
    assert {"name": drains, "value": "0"} in head["containers"][0]["env"]


def test_machines_limits_and_the_token() -> None:
    spec = ray_job(cluster(retries=5, deadline_seconds=9000, start_seconds=600, keep_seconds=60))["spec"]
    limits = {"backoffLimit": 5, "activeDeadlineSeconds": 9000, "preRunningDeadlineSeconds": 600}
    assert limits.items() <= spec.items()
    assert (spec["shutdownAfterJobFinishes"], spec["ttlSecondsAfterFinished"]) == (True, 60)
    ray = spec["rayClusterSpec"]
    assert (ray["authOptions"], ray["rayVersion"]) == ({"mode": "token"}, version("ray"))
    assert ray["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    group = ray["workerGroupSpecs"][0]
    assert [group[key] for key in ("groupName", "replicas", "minReplicas", "maxReplicas")] == ["h100", 2, 2, 2]
    _, worker = pods(ray)
    amounts = {"cpu": 32, "memory": "256Gi", "nvidia.com/gpu": 4}
    assert worker["containers"][0]["resources"] == {"requests": amounts, "limits": amounts}
    assert worker["containers"][0]["image"] == "registry.example/electra:1"
    for pod in pods(ray):
        volume = pod["volumes"][0]
        assert volume["persistentVolumeClaim"] == {"claimName": "electra-data"}
        assert pod["containers"][0]["volumeMounts"][0] == {"name": volume["name"], "mountPath": "/shared"}


def test_a_queue_and_a_priority() -> None:
    labels = ray_job(cluster(queue="team-a", priority="high"))["metadata"]["labels"]
    queued = {"kueue.x-k8s.io/queue-name": "team-a", "kueue.x-k8s.io/priority-class": "high"}
    assert queued.items() <= labels.items()
    without = ray_job(cluster(priority="high"))
    assert not queued.keys() & without["metadata"]["labels"].keys()
    assert [pod["priorityClassName"] for pod in pods(without["spec"]["rayClusterSpec"])] == ["high", "high"]


def test_elastic_groups_are_ray_s_autoscaler_s() -> None:
    group = {
        "name": "spot",
        "replicas": 4,
        "min_replicas": 1,
        "gpus": 8,
        "tolerations": ["spot"],
        "node_selector": {"a": "b"},
    }
    config = cluster(min_workers=2, worker_groups=[group])
    ray = ray_job(config)["spec"]["rayClusterSpec"]
    assert ray["enableInTreeAutoscaling"] is True
    assert (ray["workerGroupSpecs"][0]["minReplicas"], ray["workerGroupSpecs"][0]["maxReplicas"]) == (1, 4)
    _, worker = pods(ray)
    assert worker["nodeSelector"] == {"a": "b"}
    assert worker["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert kuberay.render(job(), config, HERE).findings == ()
    queued = kuberay.render(job(), cluster(worker_groups=[group], queue="team-a"), HERE)
    assert any("min_replicas" in finding for finding in queued.findings)


def test_secrets_are_named_and_never_valued_and_the_printed_manifest_is_the_sent_one() -> None:
    text = kuberay.render(job(), cluster(), HERE).text
    assert TOKEN not in text and "not named" not in text
    assert redact(text, HERE) == text
    for pod in pods(ray_job()["spec"]["rayClusterSpec"]):
        env = {variable["name"]: variable for variable in pod["containers"][0]["env"]}
        assert env["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "electra-tokens", "key": "HF_TOKEN"}}
        assert env["NCCL_DEBUG"]["value"] == "INFO"
    with pytest.raises(ValidationError, match="HF_TOKEN names a secret; list it in `secrets`"):
        SubmitConfig(env=["HF_TOKEN"])


def test_a_cluster_that_stays_is_of_the_same_machines() -> None:
    rendered = kuberay.render_cluster("electra", cluster(namespace="research", queue="team-a"), HERE)
    assert rendered.findings == ()
    assert rendered.command == ("kubectl", "apply", "-n", "research", "-f", "-")
    found = yaml.safe_load(rendered.text)
    assert (found["kind"], found["metadata"]["namespace"]) == ("RayCluster", "research")
    ours, jobs = found["spec"], ray_job(cluster(namespace="research"))["spec"]["rayClusterSpec"]
    assert ours["workerGroupSpecs"] == jobs["workerGroupSpecs"]
    assert (
        ours["headGroupSpec"]["template"]["spec"]["volumes"] == jobs["headGroupSpec"]["template"]["spec"]["volumes"][:1]
    )


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"image": None}, "cluster.submit.image"),
        ({"shared": {"path": "/shared"}}, "cluster.submit.shared.claim"),
        ({"secret_name": None}, "cluster.submit.secret_name"),
    ],
)
def test_what_kuberay_needs_is_named_by_its_key(changed: dict[str, Any], key: str) -> None:
    findings = kuberay.render(job(), cluster(**changed), HERE).findings
    assert len(findings) == 1 and findings[0].startswith(f"{key}: required")


@pytest.mark.parametrize(
    ("config", "have", "need"),
    [
        (cluster(num_workers=9), "8 GPUs", "needs 9"),
        (cluster(num_workers=65, use_gpu=False), "64 times 1 CPUs", "needs 65"),
    ],
)
def test_training_that_the_machines_have_no_room_for(config: ClusterConfig, have: str, need: str) -> None:
    (finding,) = rules.fits(config)
    assert have in finding and need in finding
    assert rules.fits(cluster(num_workers=9, min_workers=8)) == []


# --- what is wrong with a manifest ------------------------------------------------------------------------------------

RAY = ("spec", "rayClusterSpec")
HEAD = (*RAY, "headGroupSpec")
GROUP = (*RAY, "workerGroupSpecs", 0)
POD = (*GROUP, "template", "spec")
BOX = (*POD, "containers", 0)
DELETE = object()


Change = tuple[tuple[Any, ...], Any]


def planted(*changes: Change) -> list[str]:
    """The findings of a good job of which these places are changed."""
    document = copy.deepcopy(ray_job())
    for where, what in changes:
        target: Any = document
        for step in where[:-1]:
            target = target[step]
        if what is DELETE:
            del target[where[-1]]
        else:
            target[where[-1]] = what
    return rules.check([document])


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("spec", "entrypointNumGpu"), 1, "spec.entrypointNumGpu: unknown field; did you mean 'entrypointNumGpus'?"),
        (
            (*GROUP, "replica"),
            1,
            "spec.rayClusterSpec.workerGroupSpecs[0].replica: unknown field; did you mean 'replicas'?",
        ),
        (("spec", "backoffLimit"), "3", "spec.backoffLimit: must be of type integer, not '3'"),
        (("spec", "suspend"), "false", "spec.suspend: must be of type boolean, not 'false'"),
        (("spec", "ttlSecondsAfterFinished"), True, "spec.ttlSecondsAfterFinished: must be of type integer, not True"),
        (("apiVersion",), "ray.io/v1alpha1", "apiVersion: must be ray.io/v1, not 'ray.io/v1alpha1'"),
        (("kind",), "RayJobs", "kind: 'RayJobs' is none of RayJob, RayCluster, ConfigMap"),
        (("spec", "submissionMode"), "HttpMode", "spec.submissionMode: must be K8sJobMode or HTTPMode or"),
        ((*HEAD, "template"), DELETE, "spec.rayClusterSpec.headGroupSpec.template: required, but not set"),
        (
            (*HEAD, "rayStartParams", "num-cpus"),
            0,
            "spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus: must be",
        ),
        ((*POD, "terminationGracePeriod"), 9, "did you mean 'terminationGracePeriodSeconds'?"),
        ((*BOX, "volumeMount"), [], "containers[0].volumeMount: unknown field; did you mean 'volumeMounts'?"),
        ((*BOX, "env", 0, "valeu"), "x", "env[0].valeu: unknown field; did you mean 'value'?"),
        ((*BOX, "resources", "limits", "memory"), "256GB", "limits.memory: must be of type quantity, not '256GB'"),
        ((*BOX, "env"), {"A": "b"}, "containers[0].env: must be a list"),
        ((*POD, "volumes", 0, "persistentVolumeClaim", "claim"), "x", "did you mean 'claimName'?"),
    ],
)
def test_planted_mistakes_of_the_schema(path: tuple[Any, ...], value: Any, sentence: str) -> None:
    (found,) = planted((path, value))
    assert sentence in found


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ([(("metadata", "name"), "e" * 48)], "metadata.name"),
        ([(("metadata", "name"), "1electra")], "metadata.name"),
        ([(("spec", "shutdownAfterJobFinishes"), DELETE)], "spec.ttlSecondsAfterFinished: needs"),
        (
            [(("spec", "deletionStrategy"), {"deletionRules": [{}]})],
            "spec.deletionStrategy.deletionRules: excludes",
        ),
        ([(("spec", "preRunningDeadlineSeconds"), 0)], "spec.preRunningDeadlineSeconds: must be 1"),
        ([(("spec", "backoffLimit"), -1)], "spec.backoffLimit"),
        ([(("spec", "submissionMode"), "InteractiveMode")], "spec.backoffLimit: excludes InteractiveMode"),
        ([(("spec", "clusterSelector"), {"ray.io/cluster": "a"})], "spec.backoffLimit: excludes clusterSelector"),
        ([(RAY, DELETE)], "spec.rayClusterSpec: required"),
        (
            [(("spec", "submissionMode"), "SidecarMode"), (("spec", "submitterConfig"), {"backoffLimit": 1})],
            "spec.submitterConfig: excludes submissionMode: SidecarMode",
        ),
        (
            [(("spec", "submissionMode"), "SidecarMode"), ((*HEAD, "template", "spec", "restartPolicy"), "Always")],
            "headGroupSpec.template.spec.restartPolicy: must be Never",
        ),
        ([(("spec", "runtimeEnvYAML"), "a: [")], "spec.runtimeEnvYAML: must be a YAML mapping"),
        ([((*POD, "containers"), [])], "containers: needs one at least"),
        ([((*GROUP, "resources"), {"CPU": "1"}), ((*GROUP, "rayStartParams"), {"num-cpus": "1"})], "keep one"),
        ([((*GROUP, "rayStartParams"), {"labels": "a=b"})], "rayStartParams.labels: is not read"),
        ([((*GROUP, "minReplicas"), 3)], "workerGroupSpecs[0].minReplicas: must be from 0 to maxReplicas 2"),
        ([((*GROUP, "maxReplicas"), DELETE)], "needs minReplicas and maxReplicas"),
        ([((*GROUP, "replicas"), 3)], "replicas: 3 is not between"),
        ([((*RAY, "enableInTreeAutoscaling"), True), ((*POD, "restartPolicy"), "Always")], "must be Never where"),
        ([((*RAY, "rayVersion"), "2.51.1")], "needs rayVersion 2.52.0"),
        ([((*RAY, "authOptions"), DELETE)], "authOptions.mode: must be token"),
        ([((*POD, "terminationGracePeriodSeconds"), 300)], "300 must be more than RAY_JOB_STOP_WAIT_TIME_S 300"),
        ([((*BOX, "env", 0), {"name": "HF_TOKEN", "value": TOKEN})], "HF_TOKEN has its value in the manifest"),
        ([((*POD, "volumes"), [])], "volumes: has no 'shared'"),
        (
            [(("metadata", "labels"), {rules.QUEUE: "a"}), ((*RAY, "enableInTreeAutoscaling"), True)],
            "excludes autoscaling",
        ),
        (
            [(("metadata", "labels"), {rules.QUEUE: "a"}), ((*BOX, "resources"), DELETE)],
            "workerGroupSpecs[0].template.spec.containers[0].resources.requests: must be set",
        ),
    ],
)
def test_planted_mistakes_that_a_schema_cannot_say(changes: list[Change], where: str) -> None:
    found = planted(*changes)
    assert len(found) == 1 and where in found[0]
    assert TOKEN not in found[0]


def test_a_configuration_that_no_config_map_holds() -> None:
    document = documents()[0]
    document["data"]["experiment.yaml"] = "é" * (512 * 1024) + "x"
    assert rules.check([document]) == ["data: 1048577 bytes are more than a ConfigMap holds (1048576)"]


def test_the_image_has_every_package_and_the_python_of_the_lock() -> None:
    text = (ROOT / "cluster" / "Dockerfile").read_text()
    for name in ("data_prep", "training", "cluster", "pipeline", "configs"):
        assert f"COPY {name} {name}\n" in text
        assert f"\n!{name}\n" in (ROOT / "cluster" / "Dockerfile.dockerignore").read_text()
    assert "FROM python:3.11" in text and "for Python 3.11" in (ROOT / "requirements.lock").read_text()
