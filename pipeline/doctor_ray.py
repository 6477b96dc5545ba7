"""What `electra doctor` sees of a Ray cluster: whether it answers, who may use it, what it consists of.

Whoever reaches a dashboard without a token runs what they like on the cluster's machines (CVE-2023-48022), so one that
answers without a token on an address that other machines reach is an error, of the cluster named as of any Ray of this
machine. Asks, and changes nothing.
"""

import os
import platform
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from ipaddress import ip_address
from urllib.parse import urlsplit

from cluster.jobs import ADDRESS, Cluster, resolve
from data_prep.errors import ElectraError
from pipeline.doctor_finding import Finding, error, ok, warning
from pipeline.experiment import Experiment

_SECONDS = 5.0
_DASHBOARD = 8265  # Ray's own default
_CLOSE = (
    "start Ray with RAY_AUTH_MODE=token and a token (`ray get-auth-token --generate`), or with "
    "--dashboard-host=127.0.0.1 behind `ssh -L`"
)


def ray(experiment: Experiment | None, address: str | None) -> Iterator[Finding]:
    """The cluster whose dashboard is named, and any dashboard of this machine."""
    url = None
    if address or os.environ.get(ADDRESS):
        try:
            url = resolve(address)
        except ElectraError as refused:
            yield error("ray", str(refused), "correct it")
            return
    yield from _open_here(url)
    if url is not None:
        yield from _named(url, experiment)
    elif experiment is not None and experiment.cluster.address is not None:
        yield from _joined(experiment.cluster.address)
    else:
        yield ok("ray", f"{metadata.version('ray')}, started by each command for itself; --address names a cluster")


# --- who may use it ---------------------------------------------------------------------------------------------------


def _open_here(url: str | None) -> Iterator[Finding]:
    """Dashboards of this machine that others reach without a token."""
    ports = {_DASHBOARD}
    if url is not None and is_loopback(str(urlsplit(url).hostname)):
        ports.add(urlsplit(url).port or _DASHBOARD)
    for port in sorted(ports):
        for host in own_addresses():
            if answers_anybody(f"http://{host}:{port}") is True:
                said = f"a Ray dashboard of this machine answers anybody at http://{host}:{port}, without a token"
                yield error("ray authentication", said, _CLOSE)
                break


def own_addresses() -> list[str]:
    """By which other machines reach this one."""
    import psutil

    found = [one.address for ones in psutil.net_if_addrs().values() for one in ones if one.family == socket.AF_INET]
    return sorted({address for address in found if not is_loopback(address)})


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def answers_anybody(url: str) -> bool | None:
    """Whether a dashboard there tells its jobs to who has no token; None where no dashboard is."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/api/jobs/", timeout=_SECONDS) as answer:
            return bool(answer.headers.get_content_type() == "application/json")
    except urllib.error.HTTPError as refused:
        return False if refused.code in (401, 403) else None
    except (OSError, ValueError):
        return None


# --- what it is -------------------------------------------------------------------------------------------------------


def _named(url: str, experiment: Experiment | None) -> Iterator[Finding]:
    try:
        cluster = Cluster(url)
        from cluster.nodes import nodes

        alive = nodes(cluster)
        theirs = cluster.ray_version()
    except ElectraError as refused:
        said, _, remedy = str(refused).partition("; " if "; " in str(refused) else ": ")
        yield error("ray", said, remedy or "see the head's log")
        return
    ours = metadata.version("ray")
    cpus, gpus = sum(node.cpus for node in alive), sum(node.gpus for node in alive)
    said = f"{theirs} at {url}: {len(alive)} node(s), {cpus:g} CPUs, {gpus:g} GPUs"
    if theirs != ours:
        yield error("ray", f"{said}; here is {ours}, and both must be the same", f"pip install ray=={theirs} here")
    else:
        yield from _enough(said, cpus, gpus, experiment)
    yield from _authentication(url)


def _enough(said: str, cpus: float, gpus: float, experiment: Experiment | None) -> Iterator[Finding]:
    if experiment is None:
        yield ok("ray", said)
        return
    cluster = experiment.cluster
    have, unit, each = (gpus, "GPU", 1) if cluster.use_gpu else (cpus, "CPU", cluster.threads_per_worker)
    room = int(have / each)
    wants = f"{cluster.num_workers} workers of {each} {unit}{'s' * (each > 1)}"
    if room < cluster.fewest:
        yield error("ray", f"{said}; {wants} do not fit", f"add nodes, or set cluster.num_workers={max(1, room)}")
    elif room < cluster.num_workers:
        yield warning("ray", f"{said}; {wants} do not all fit, and training begins with {room}", "add nodes")
    else:
        yield ok("ray", said)


def _authentication(url: str) -> Iterator[Finding]:
    host = str(urlsplit(url).hostname)
    if answers_anybody(url) is not True:
        yield ok("ray authentication", "asks for a token, and takes this one")
    elif is_loopback(host):
        yield ok("ray authentication", "no token; on the loopback interface, for the users of its machine")
    else:
        yield error("ray authentication", f"{url} answers anybody, without a token", _CLOSE)


def _joined(address: str) -> Iterator[Finding]:
    """cluster.address: where a command joins Ray itself, which only a node of the cluster can."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        known = os.environ.get("RAY_ADDRESS") or os.path.exists("/tmp/ray/ray_current_cluster")
        said = f"cluster.address={address} joins the Ray of this node"
        if address == "auto" and not known:
            yield warning("ray", f"{said}, and none is known here", "run this on a node of the cluster, or --address")
        else:
            yield ok("ray", f"{said} ({metadata.version('ray')}, {platform.node()})")
        return
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS).close()
    except OSError as refused:
        reason = refused.strerror or str(refused)
        yield error(
            "ray", f"no Ray answers at cluster.address {address} ({reason})", "start it, or correct the address"
        )
        return
    yield ok("ray", f"{metadata.version('ray')}; something answers at cluster.address {address}")
