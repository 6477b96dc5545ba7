"""KubeRay's manifests from the `cluster` section: a RayJob with its configuration, or a RayCluster that stays.

One job is a RayJob that makes its own Ray cluster and removes it: a head that drives, without work of its own, and the
groups of workers; all mount the shared volume. The operator hands the job to Ray itself (HTTPMode): no second pod, and
none that could try it twice. A retry is a new cluster, which resumes. Stopping is graceful: a pod of the head first has
its driver save (`cluster.leaving`), one of a worker drains itself, and Kubernetes waits for both; KubeRay stops nothing
by itself. Ray asks for a token, which the operator makes.
"""

import shlex
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import yaml

from cluster.config import ClusterConfig
from cluster.render import Job, Rendered, rules
from cluster.submit_config import Machine, SubmitConfig, WorkerGroup

API = "ray.io/v1"
_LEAVE_SECONDS = 60  # beyond the time to save, for Ray to end
_MOUNT, _CONFIG = "/etc/electra", "experiment.yaml"
_LABELS = {"app.kubernetes.io/name": "electra"}


class _Dumper(yaml.SafeDumper):
    """Without the anchors that equal parts would become, and texts of several lines as such."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def config_path(submit: SubmitConfig, job_id: str) -> str:
    """Where the driver finds its configuration."""
    return f"{_MOUNT}/{_CONFIG}"


def render(job: Job, cluster: ClusterConfig, here: Mapping[str, str]) -> Rendered:
    """The job's manifest, with the values of `cluster.submit.env` from `here`."""
    submit = cluster.submit
    documents = [_config_map(job, submit), _ray_job(job, submit, here)]
    return _rendered(documents, submit, [*rules.fits(cluster), *_findings(submit)])


def render_cluster(name: str, cluster: ClusterConfig, here: Mapping[str, str]) -> Rendered:
    """A RayCluster of the same machines, that jobs are sent to with Ray Jobs until it is deleted."""
    submit = cluster.submit
    document = {"apiVersion": API, "kind": "RayCluster", "metadata": _metadata(name, submit)}
    document["spec"] = _cluster_spec(submit, here, config_map=None)
    return _rendered([document], submit, [*rules.fits(cluster), *_findings(submit)])


def _rendered(documents: list[dict[str, Any]], submit: SubmitConfig, findings: list[str]) -> Rendered:
    text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    where = ("-n", submit.namespace) if submit.namespace else ()
    return Rendered(
        text=text, command=("kubectl", "apply", *where, "-f", "-"), findings=(*findings, *rules.check(documents))
    )


def _findings(submit: SubmitConfig) -> list[str]:
    """What a manifest cannot do without, by the key that says it."""
    found = []
    if submit.image is None:
        found.append("cluster.submit.image: required for KubeRay; build one from cluster/Dockerfile")
    if submit.shared.claim is None:
        found.append("cluster.submit.shared.claim: required for KubeRay; name a ReadWriteMany PersistentVolumeClaim")
    if submit.secrets and submit.secret_name is None:
        found.append(
            f"cluster.submit.secret_name: required for {', '.join(submit.secrets)}; name the Secret with those keys"
        )
    return found


# --- documents --------------------------------------------------------------------------------------------------------


def _config_map(job: Job, submit: SubmitConfig) -> dict[str, Any]:
    metadata = _metadata(job.id, submit)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {_CONFIG: job.experiment}}


def _ray_job(job: Job, submit: SubmitConfig, here: Mapping[str, str]) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "entrypoint": shlex.join(job.words),
        "jobId": job.id,
        "metadata": {"out": job.out},
        "submissionMode": "HTTPMode",
        "runtimeEnvYAML": yaml.safe_dump({"env_vars": {rules.STOP: str(submit.stop_seconds)}}),
        "backoffLimit": submit.retries,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": submit.keep_seconds,
    }
    if submit.deadline_seconds is not None:
        spec["activeDeadlineSeconds"] = submit.deadline_seconds
    if submit.start_seconds is not None:
        spec["preRunningDeadlineSeconds"] = submit.start_seconds
    spec["rayClusterSpec"] = _cluster_spec(submit, here, config_map=job.id)
    return {"apiVersion": API, "kind": "RayJob", "metadata": _metadata(job.id, submit, queued=True), "spec": spec}


def _metadata(name: str, submit: SubmitConfig, *, queued: bool = False) -> dict[str, Any]:
    labels = dict(_LABELS)
    if queued and submit.queue is not None:
        labels[rules.QUEUE] = submit.queue
        if submit.priority is not None:
            labels[rules.PRIORITY] = submit.priority
    place = {"namespace": submit.namespace} if submit.namespace else {}
    return {"name": name, **place, "labels": labels}


def _cluster_spec(submit: SubmitConfig, here: Mapping[str, str], *, config_map: str | None) -> dict[str, Any]:
    groups = submit.worker_groups
    elastic = any(_least(group) < group.replicas for group in groups)
    environment = submit.environment(dict(here))
    return {
        "rayVersion": version("ray"),
        "authOptions": {"mode": "token"},
        **({"enableInTreeAutoscaling": True} if elastic else {}),
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},  # within the cluster; it asks for a token
            "template": _head(submit, environment, config_map),
        },
        "workerGroupSpecs": [_workers(group, submit, environment) for group in groups],
    }


def _head(submit: SubmitConfig, environment: dict[str, str], config_map: str | None) -> dict[str, Any]:
    # It has had its driver save by then; as the last one it has nothing to drain for.
    pod = _pod("ray-head", submit, submit.head, 0, {**environment, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"})
    container = pod["spec"]["containers"][0]
    leave = [submit.python, "-m", "cluster.leaving", str(submit.stop_seconds)]
    container["lifecycle"] = {"preStop": {"exec": {"command": leave}}}
    if config_map is not None:
        container["volumeMounts"].append({"name": "experiment", "mountPath": _MOUNT, "readOnly": True})
        pod["spec"]["volumes"].append({"name": "experiment", "configMap": {"name": config_map}})
    return pod


def _workers(group: WorkerGroup, submit: SubmitConfig, environment: dict[str, str]) -> dict[str, Any]:
    # `ray start` answers SIGTERM by draining its node for so long, and training saves meanwhile.
    drain = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(submit.stop_seconds)}
    return {
        "groupName": group.name,
        "replicas": group.replicas,
        "minReplicas": _least(group),
        "maxReplicas": group.replicas,
        "rayStartParams": {},
        "template": _pod("ray-worker", submit, group, group.gpus, {**environment, **drain}),
    }


def _least(group: WorkerGroup) -> int:
    return group.replicas if group.min_replicas is None else group.min_replicas


def _pod(name: str, submit: SubmitConfig, machine: Machine, gpus: int, environment: dict[str, str]) -> dict[str, Any]:
    amounts: dict[str, Any] = {"cpu": machine.cpus, "memory": machine.memory}
    if gpus:
        amounts["nvidia.com/gpu"] = gpus
    container = {
        "name": name,
        "image": submit.image or "",
        "env": [*({"name": key, "value": value} for key, value in environment.items()), *_secret_env(submit)],
        "resources": {"requests": amounts, "limits": amounts},
        "volumeMounts": [{"name": "shared", "mountPath": submit.shared.path}],
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",  # the operator makes a new pod
        "terminationGracePeriodSeconds": submit.stop_seconds + _LEAVE_SECONDS,
        "containers": [container],
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": submit.shared.claim or ""}}],
    }
    if submit.priority is not None and submit.queue is None:
        spec["priorityClassName"] = submit.priority
    if machine.node_selector:
        spec["nodeSelector"] = machine.node_selector
    if machine.tolerations:
        spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in machine.tolerations]
    return {"metadata": {"labels": dict(_LABELS)}, "spec": spec}


def _secret_env(submit: SubmitConfig) -> list[dict[str, Any]]:
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": submit.secret_name or "", "key": name}}}
        for name in submit.secrets
    ]
