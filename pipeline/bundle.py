"""`electra doctor --bundle FILE`: what a report of a defect needs, in one archive, and no secret.

In it: what doctor found, packages, a few variables of the environment (an allow-list: everything else stays out), the
experiment's configuration, and of its runs the records, the events, and the last of metric lines and logs. Every text
goes through `data_prep.redact`, and nothing is packed that is no text. No weights, no rows, no text of a corpus.
"""

import gzip
import io
import json
import os
import platform
import sys
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from data_prep import storage
from data_prep.errors import ConfigError, ElectraError, PreflightError
from data_prep.redact import redact, redacted
from pipeline import config as yaml_config
from pipeline.experiment import Experiment
from pipeline.gather import CONFIG_NAME
from pipeline.tracking_records import code_version
from training.run_folder import DONE, EVENTS, RECORD

# Of the environment: what decides how a run behaves, and never who may do what.
VARIABLES = (
    "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "ELECTRA_CACHE", "GLOO_SOCKET_IFNAME",
    "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_XET", "LD_LIBRARY_PATH", "MASTER_ADDR", "MASTER_PORT",
    "MLFLOW_TRACKING_URI", "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "RANK", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE",
    "RAY_JOB_STOP_WAIT_TIME_S", "RAY_TRAIN_V2_ENABLED", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_RESTART_COUNT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "WORLD_SIZE",
)  # fmt: skip
_TAIL = 200_000  # bytes of each log, of events and of metric lines
_LARGEST = 2_000_000  # bytes of a record; a larger one is cut
_LOGS = 20  # the newest
_RUNS = 50  # the newest


def check_name(file: Path) -> None:
    """ConfigError for a name that is no archive's, or lies in no folder."""
    if not file.name.endswith((".tar.gz", ".tgz")):
        raise ConfigError(f"--bundle {file}: an archive's name ends with .tar.gz")
    if not file.parent.is_dir():
        raise ConfigError(f"--bundle {file}: {file.parent} is no folder; make it, or name another")


def write(
    file: Path, findings: dict[str, Any], out: Path, address: str | None, experiment: Experiment | None = None
) -> list[str]:
    """Write the archive, and say what is in it: `experiment` where `out` holds none yet. PreflightError where it cannot
    be written."""
    contents = {name: redact(text) for name, text in _contents(findings, out, address, experiment)}
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, text in contents.items():
            data = text.encode()
            member = tarfile.TarInfo(f"electra-report/{name}")
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    try:
        storage.write_bytes(file, packed.getvalue())
    except OSError as refused:
        reason = refused.strerror or str(refused)
        raise PreflightError(f"--bundle {file}: cannot be written ({reason}); name another place") from None
    return list(contents)


def _contents(
    findings: dict[str, Any], out: Path, address: str | None, experiment: Experiment | None
) -> Iterator[tuple[str, str]]:
    yield "doctor.json", _json(findings)
    yield "machine.json", _json(_machine())
    yield "packages.txt", "".join(f"{name}=={version}\n" for name, version in _packages())
    if (out / CONFIG_NAME).is_file():
        yield CONFIG_NAME, _text(out / CONFIG_NAME, _LARGEST)
    elif experiment is not None:
        yield CONFIG_NAME, yaml_config.dump(experiment)
    for path in (out / EVENTS, out / "corpus" / "manifest.json"):
        if path.is_file():
            yield path.relative_to(out).as_posix(), _end_of(path)
    for run_dir in sorted((path.parent for path in out.glob(f"runs/*/{RECORD}")), key=_age)[:_RUNS]:
        yield from _run(run_dir)
    logs = [path for path in (*out.glob("*.log"), *out.glob("logs/**/*"), *out.glob("runs/*/logs/**/*"))]
    for path in sorted((path for path in logs if path.is_file()), key=_age)[:_LOGS]:
        yield path.relative_to(out).as_posix(), _end_of(path)
    if address is not None:
        yield "job.log", _job_log(out, address)


def _run(run_dir: Path) -> Iterator[tuple[str, str]]:
    place = f"runs/{run_dir.name}"
    for name in (RECORD, DONE):
        if (run_dir / name).is_file():
            yield f"{place}/{name}", _text(run_dir / name, _LARGEST)
    if (run_dir / EVENTS).is_file():
        yield f"{place}/{EVENTS}", _end_of(run_dir / EVENTS)
    for path in sorted(run_dir.glob("metrics/*.jsonl"))[-2:]:
        yield f"{place}/metrics/{path.name}", _end_of(path)


def _machine() -> dict[str, Any]:
    return {
        "python": sys.version,
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "code": code_version(),
        "environment": redacted({name: os.environ[name] for name in VARIABLES if name in os.environ}),
        "set": sorted(name for name in os.environ if name.startswith(("NCCL_", "RAY_", "MLFLOW_", "HF_", "TORCH_"))),
    }


def _packages() -> list[tuple[str, str]]:
    return sorted({(one.metadata["Name"] or "?", one.version) for one in metadata.distributions()})


def _job_log(out: Path, address: str) -> str:
    """What the newest job that works there has written; or why that cannot be told."""
    from cluster.jobs import Cluster

    try:
        cluster = Cluster(address)
        return cluster.logs(cluster.find(str(out)).id)[-_TAIL:]
    except ElectraError as refused:
        return f"{refused}\n"


def _json(value: Any) -> str:
    return json.dumps(redacted(value), indent=1, sort_keys=True) + "\n"


def _text(path: Path, most: int) -> str:
    with open(path, "rb") as file:
        return file.read(most).decode("utf-8", "replace")


def _end_of(path: Path) -> str:
    """The last lines, whole ones: a cut line may hold the end of a secret without what tells of it."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - _TAIL))
        data = file.read()
    if end > _TAIL:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")


def _age(path: Path) -> float:
    """The newest first."""
    return -path.stat().st_mtime
