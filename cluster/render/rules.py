"""What a schema cannot say: the controllers' own rules for a manifest, and whether the machines fit the experiment.

The rules of KubeRay are those of its operator's validation (v1.7.0, ray-operator/controllers/ray/utils), of Kueue those
that it documents for RayJob; both are checked there only after a manifest has been accepted. Each function returns
sentences that begin with the path or key. Not here: rules for fields that we never render, such as Redis and TLS.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from cluster.config import ClusterConfig
from cluster.render import schema
from data_prep.redact import is_secret_name

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
STOP = "RAY_JOB_STOP_WAIT_TIME_S"
_DNS_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_LONGEST_NAME = {"RayJob": 47, "RayCluster": 53}  # the operator appends to a job's name, Kubernetes to a cluster's
_MOST_GROUPS = 17  # Kueue counts 18 sets of pods, and the head is one
_LARGEST_MAP = 1024 * 1024  # bytes of a ConfigMap
_FIRST_AUTH = (2, 52)  # the Ray that knows tokens
_RAY_STOP = "3"  # Ray's own time to stop
_RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")

Rule = Callable[[dict[str, Any]], Iterator[str]]


def check(documents: list[dict[str, Any]]) -> list[str]:
    """All that is wrong with the documents of a manifest: schema first; the rules only of what the schema accepts."""
    found = [problem for document in documents for problem in schema.problems(document)]
    if found:
        return found
    return [problem for document in documents for rule in _RULES[document["kind"]] for problem in rule(document)]


def fits(cluster: ClusterConfig) -> list[str]:
    """Whether the worker groups have room for the training processes that cannot be done without."""
    groups = cluster.submit.worker_groups
    if cluster.use_gpu:
        have, need, what = sum(group.replicas * group.gpus for group in groups), cluster.fewest, "GPUs"
    else:
        have = sum(group.replicas * (group.cpus // cluster.threads_per_worker) for group in groups)
        need, what = cluster.fewest, f"times {cluster.threads_per_worker} CPUs"
    if need <= have:
        return []
    return [f"cluster.submit.worker_groups: have {have} {what}, and training needs {need}; add machines or lower it"]


# --- of one document --------------------------------------------------------------------------------------------------


def _name(document: dict[str, Any]) -> Iterator[str]:
    name, most = document["metadata"].get("name", ""), _LONGEST_NAME[document["kind"]]
    if len(name) > most or not _DNS_1035.match(name):
        yield f"metadata.name: {name!r} must be small letters, digits and dashes, a letter first, {most} at most"


def _ending(job: dict[str, Any]) -> Iterator[str]:
    spec = job["spec"]
    shutdown, ttl = spec.get("shutdownAfterJobFinishes", False), spec.get("ttlSecondsAfterFinished", 0)
    if ttl < 0:
        yield f"spec.ttlSecondsAfterFinished: must not be negative, as {ttl} is"
    if ttl > 0 and not shutdown:
        yield "spec.ttlSecondsAfterFinished: needs shutdownAfterJobFinishes: true"
    if spec.get("suspend") and not shutdown:
        yield "spec.suspend: needs shutdownAfterJobFinishes: true"
    if shutdown and spec.get("deletionStrategy", {}).get("deletionRules"):
        yield "spec.deletionStrategy.deletionRules: excludes shutdownAfterJobFinishes"
    for name in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if spec.get(name, 1) < 1:
            yield f"spec.{name}: must be 1 or more, not {spec[name]}"
    if spec.get("backoffLimit", 0) < 0:
        yield f"spec.backoffLimit: must not be negative, as {spec['backoffLimit']} is"


def _submission(job: dict[str, Any]) -> Iterator[str]:
    spec = job["spec"]
    mode, selected = spec.get("submissionMode", "K8sJobMode"), bool(spec.get("clusterSelector"))
    if "rayClusterSpec" not in spec and not selected:
        yield "spec.rayClusterSpec: required where there is no clusterSelector"
    if selected and spec.get("suspend"):
        yield "spec.suspend: excludes clusterSelector"
    if spec.get("backoffLimit", 0) > 0 and (selected or mode == "InteractiveMode"):
        yield f"spec.backoffLimit: excludes {'clusterSelector' if selected else mode}"
    if mode == "SidecarMode":
        for name in ("submitterPodTemplate", "submitterConfig", "clusterSelector"):
            if spec.get(name):
                yield f"spec.{name}: excludes submissionMode: SidecarMode"
        if _restarts(spec.get("rayClusterSpec", {}).get("headGroupSpec", {})):
            yield "spec.rayClusterSpec.headGroupSpec.template.spec.restartPolicy: must be Never with SidecarMode"
    if _runtime_env(spec) is None:
        yield "spec.runtimeEnvYAML: must be a YAML mapping"


def _cluster(document: dict[str, Any]) -> Iterator[str]:
    path, spec = _cluster_of(document)
    if not spec:
        return
    auto = spec.get("enableInTreeAutoscaling", False)
    for where, group in _groups(document):
        pod = group["template"].get("spec", {})
        if not pod.get("containers"):
            yield f"{where}.template.spec.containers: needs one at least"
        if group.get("resources") and any(group.get("rayStartParams", {}).get(name) for name in _RESOURCES):
            yield f"{where}.resources: set there and in rayStartParams; keep one"
        if "labels" in group.get("rayStartParams", {}):
            yield f"{where}.rayStartParams.labels: is not read; set {where}.labels"
        if auto and _restarts(group):
            yield f"{where}.template.spec.restartPolicy: must be Never where Ray's autoscaler takes and gives back"
    for where, group in _groups(document)[1:]:
        least, most = group.get("minReplicas"), group.get("maxReplicas")
        if not auto and (least is None or most is None):
            yield f"{where}: needs minReplicas and maxReplicas where enableInTreeAutoscaling is not set"
        elif least is not None and most is not None and not 0 <= least <= most:
            yield f"{where}.minReplicas: must be from 0 to maxReplicas {most}, not {least}"
        elif not (least or 0) <= group.get("replicas", 0) <= (most if most is not None else group.get("replicas", 0)):
            yield f"{where}.replicas: {group.get('replicas', 0)} is not between minReplicas and maxReplicas"
    yield from _token(f"{path}authOptions", spec)


def _token(path: str, spec: dict[str, Any]) -> Iterator[str]:
    if spec.get("authOptions", {}).get("mode", "token" if "authOptions" in spec else "disabled") != "token":
        yield f"{path}.mode: must be token; without one, whoever reaches the dashboard runs commands in the cluster"
        return
    version = re.match(r"(\d+)\.(\d+)", spec.get("rayVersion", ""))
    if version is None or (int(version[1]), int(version[2])) < _FIRST_AUTH:
        yield f"{path}: needs rayVersion 2.52.0 or later, not {spec.get('rayVersion')!r}"


def _queue(job: dict[str, Any]) -> Iterator[str]:
    """Kueue's, where the job names a queue."""
    spec = job["spec"]
    if QUEUE not in job["metadata"].get("labels", {}):
        return
    if not spec.get("shutdownAfterJobFinishes"):
        yield f"metadata.labels[{QUEUE}]: needs spec.shutdownAfterJobFinishes: true"
    if spec.get("clusterSelector"):
        yield f"metadata.labels[{QUEUE}]: excludes spec.clusterSelector"
    cluster = spec.get("rayClusterSpec", {})
    if cluster.get("enableInTreeAutoscaling"):
        yield f"metadata.labels[{QUEUE}]: excludes autoscaling; leave cluster.submit.worker_groups.*.min_replicas out"
    if len(cluster.get("workerGroupSpecs", [])) > _MOST_GROUPS:
        yield f"spec.rayClusterSpec.workerGroupSpecs: Kueue takes {_MOST_GROUPS} groups at most"
    for where, container in _containers(job):
        if not container.get("resources", {}).get("requests"):
            yield f"{where}.resources.requests: must be set, or Kueue counts nothing"


def _stop(document: dict[str, Any]) -> Iterator[str]:
    """Ours: a pod outlives the time that a job has to save."""
    seconds = ((_runtime_env(document["spec"]) or {}).get("env_vars") or {}).get(STOP, _RAY_STOP)
    for where, group in _groups(document):
        grace = group["template"].get("spec", {}).get("terminationGracePeriodSeconds", 30)
        if grace <= int(seconds):
            yield f"{where}.template.spec.terminationGracePeriodSeconds: {grace} must be more than {STOP} {seconds}"


def _secrets(document: dict[str, Any]) -> Iterator[str]:
    """Ours: a value in a manifest is read by all who may read the object."""
    for where, container in _containers(document):
        for variable in container.get("env", []):
            if variable.get("value") and is_secret_name(variable["name"]):
                yield f"{where}.env: {variable['name']} has its value in the manifest; name a Secret in valueFrom"


def _volumes(document: dict[str, Any]) -> Iterator[str]:
    for where, group in _groups(document):
        have = {volume["name"] for volume in group["template"].get("spec", {}).get("volumes", [])}
        for container in group["template"].get("spec", {}).get("containers", []):
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in have:
                    yield f"{where}.template.spec.volumes: has no '{mount['name']}', which {container['name']} mounts"


def _size(document: dict[str, Any]) -> Iterator[str]:
    size = sum(len(text.encode()) for text in document.get("data", {}).values())
    if size > _LARGEST_MAP:
        yield f"data: {size} bytes are more than a ConfigMap holds ({_LARGEST_MAP})"


_RULES: dict[str, tuple[Rule, ...]] = {
    "RayJob": (_name, _ending, _submission, _cluster, _queue, _stop, _secrets, _volumes),
    "RayCluster": (_name, _cluster, _secrets, _volumes),
    "ConfigMap": (_size,),
}


# --- looking into one -------------------------------------------------------------------------------------------------


def _runtime_env(spec: dict[str, Any]) -> dict[str, Any] | None:
    """Of a job, read from its text; None where that is no mapping."""
    try:
        found = yaml.safe_load(spec.get("runtimeEnvYAML", ""))
    except yaml.YAMLError:
        return None
    return {} if found is None else found if isinstance(found, dict) else None


def _cluster_of(document: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Where the cluster is specified, as the beginning of a path."""
    if document["kind"] == "RayCluster":
        return "spec.", document["spec"]
    return "spec.rayClusterSpec.", document["spec"].get("rayClusterSpec", {})


def _groups(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The head first, then the groups of workers; none where a running cluster is selected."""
    path, spec = _cluster_of(document)
    if not spec:
        return []
    workers = enumerate(spec.get("workerGroupSpecs", []))
    return [
        (f"{path}headGroupSpec", spec["headGroupSpec"]),
        *((f"{path}workerGroupSpecs[{number}]", group) for number, group in workers),
    ]


def _containers(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, group in _groups(document):
        for number, container in enumerate(group["template"].get("spec", {}).get("containers", [])):
            yield f"{where}.template.spec.containers[{number}]", container


def _restarts(group: dict[str, Any]) -> bool:
    return group.get("template", {}).get("spec", {}).get("restartPolicy", "Never") != "Never"
