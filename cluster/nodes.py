"""The machines of a Ray cluster, as its dashboard tells of them. Loads Ray when first called."""

from dataclasses import dataclass

from cluster.jobs import Cluster
from data_prep.errors import PreflightError

_LONGEST_LIST = 10_000  # nodes, dead ones included
_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One that is alive."""

    id: str
    address: str
    head: bool
    cpus: float
    gpus: float


def nodes(cluster: Cluster) -> list[Node]:
    """Those that are alive, the head first. Errors as `Cluster`."""
    from ray.util.state import list_nodes
    from ray.util.state.exception import RayStateApiException

    try:
        with cluster.sentences():
            # Ray takes what its own filter leaves out (the dead) for an answer that was cut, and fails
            found = list_nodes(address=cluster.address, limit=_LONGEST_LIST, timeout=_SECONDS)
    except RayStateApiException as error:
        reason = " ".join(str(error).split())
        raise PreflightError(f"the cluster at {cluster.address} does not tell its nodes ({reason})") from None
    alive = [
        Node(
            id=one.node_id,
            address=one.node_ip,
            head=bool(one.is_head_node),
            cpus=float((one.resources_total or {}).get("CPU", 0.0)),
            gpus=float((one.resources_total or {}).get("GPU", 0.0)),
        )
        for one in found
        if one.state == "ALIVE"
    ]
    return sorted(alive, key=lambda node: (not node.head, node.address, node.id))
