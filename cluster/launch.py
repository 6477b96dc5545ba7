"""Training without Ray: in this very process, or in processes that torchrun, deepspeed or srun has started.

Each of those starts one process a rank, with its place in the environment. Rank 0 does what a driver does (holds the
experiment's folder, plans, prints, mirrors) and trains; the others wait for its word in the store that the process
group is made from, and train what it says. An error ends every rank with the exit code of the first that failed, those
that hang waiting for it too, and is said once: by rank 0 where it failed as well. A rank that is killed can tell
nobody: to end the others is the launcher's (torchrun and deepspeed do; give srun --kill-on-bad-exit=1).

SIGTERM, SIGUSR1 or a first Ctrl-C at any rank while it trains makes all of them save and end with 75 (`cluster.stop`).
srun then exits with 75 too; torchrun, which hands SIGTERM on and gives the ranks 30 seconds, exits with 1 whatever they
exit with. Restarting is the launcher's as well: torchrun --max-restarts, or the same command again; torchrun starts
ranks that were asked to stop again too, and what was asked still stands then.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.config import ClusterConfig
from cluster.progress import following
from cluster.worker import Assignment, OnProgress, assign, work
from data_prep.errors import ElectraError, PreflightError
from data_prep.storage import Location
from training.settings import RunSpec

if TYPE_CHECKING:
    import torch

JOIN_SECONDS = 300.0  # that ranks may start apart
POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0  # that a rank which fails waits for rank 0 to say why
WATCH_SECONDS = 1.0  # between looks at whether another rank has failed
HANG_SECONDS = 10.0  # that a rank may go on after another one has failed
LEAVE_SECONDS = 20.0  # that rank 0 waits for the others at its end: the store may be in its process

_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
_ASSIGNMENT, _FAILURE, _LEFT = "assignment", "failure", "left"


class RankZeroFailed(ElectraError):
    """Another rank has failed and said why; this one ends with the same exit code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.exit_code = code


@dataclass(slots=True)
class Ranks:
    """This process among those that train together."""

    rank: int
    world_size: int
    local_rank: int
    store: Any  # torch.distributed.Store, shared by all of them
    told: bool = field(default=False)

    def train_runs(
        self,
        specs: Sequence[RunSpec],
        corpora: Mapping[str, Location],
        runs_dir: Path,
        config: ClusterConfig,
        on_progress: OnProgress,
        profile: int = 0,
    ) -> None:
        """Rank 0: train every run that is not done, together with the ranks that `follow`; as
        `cluster.trainer.train_runs` otherwise. `config.num_workers` is not looked at."""
        assignment = assign(specs, corpora, runs_dir, config, profile)
        self._tell(assignment)
        with following(assignment, on_progress):
            self._work(assignment)

    def follow(self) -> None:
        """Every other rank: train what rank 0 says. RankZeroFailed where it says that it failed."""
        while not self.store.check([_ASSIGNMENT]):
            if (failure := self._failure()) is not None:
                raise RankZeroFailed(*failure)
            time.sleep(POLL_SECONDS)
        self._work(Assignment.model_validate_json(self.store.get(_ASSIGNMENT)))

    def _tell(self, assignment: Assignment) -> None:
        self.told = True
        self.store.set(_ASSIGNMENT, assignment.model_dump_json())

    def _work(self, assignment: Assignment) -> None:
        if not assignment.specs:
            return
        with self._watched():
            device = pick_device(self.local_rank, use_gpu=assignment.use_gpu)
            with self._process_group(device):
                work(assignment, device, rank=self.rank, local_rank=self.local_rank, world_size=self.world_size)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """End this process while the block hangs, in a collective or while the group is made, which nothing interrupts,
        because another rank has failed."""
        ended = threading.Event()
        # A client of the store is locked while it waits, and the block's may wait for ever.
        watch = replace(self, store=self.store.clone())
        threading.Thread(target=watch._end_when_hanging, args=(ended,), name="failure-watch", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _end_when_hanging(self, ended: threading.Event) -> None:
        failure = None
        with contextlib.suppress(RuntimeError):  # the store is gone, and nobody has said why: the launcher's to end
            while failure is None and not ended.wait(WATCH_SECONDS):
                failure = self._failure()
        if failure is not None and not ended.wait(HANG_SECONDS):
            self.leave()
            os._exit(failure[1])

    @contextlib.contextmanager
    def _process_group(self, device: "torch.device") -> Iterator[None]:
        """The group that the run trains in; one that exists is used, and stays."""
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore

        if dist.is_initialized():
            yield
            return
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = PrefixStore("group", self.store)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world_size)
        yield
        dist.destroy_process_group()  # not after an error: others may be in a collective, and NCCL would wait for them

    def fail(self, sentence: str, code: int) -> tuple[str, int, bool]:
        """Tell the others of an error; returns what went wrong first, its exit code, and whether to print it here."""
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it the process that held it
            if self.rank > 0:
                self._failure(wait=GRACE_SECONDS)
            self.told = True
            first = self.store.compare_set(_FAILURE, "", json.dumps([sentence, code, self.rank]))  # ranks fail at once
            sentence, code, rank = json.loads(first)
            return sentence, code, rank == self.rank
        return sentence, code, True

    def _failure(self, wait: float = 0.0) -> tuple[str, int] | None:
        until = time.monotonic() + wait
        while not self.store.check([_FAILURE]):
            if time.monotonic() >= until:
                return None
            time.sleep(POLL_SECONDS)
        sentence, code, _ = json.loads(self.store.get(_FAILURE))
        return sentence, code

    def leave(self) -> None:
        """Last of all: rank 0 waits until the others have heard its word."""
        with contextlib.suppress(RuntimeError):
            if self.rank > 0:
                self.store.add(_LEFT, 1)
                return
            if not self.told:
                self._tell(Assignment(specs=[]))
            until = time.monotonic() + LEAVE_SECONDS
            while self.store.add(_LEFT, 0) < self.world_size - 1 and time.monotonic() < until:
                time.sleep(POLL_SECONDS)


def alone() -> Ranks:
    """This process by itself: no launcher, no network, a debugger works."""
    from torch._C._distributed_c10d import HashStore

    return Ranks(rank=0, world_size=1, local_rank=0, store=HashStore())


def join(environment: MutableMapping[str, str] = os.environ) -> Ranks:
    """Meet the other ranks. PreflightError where no launcher has left its variables, or rank 0 does not answer."""
    rank, world_size, local_rank = place(environment)
    environment.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(local_rank))
    environment.update({**address(environment), **environment})
    where = f"MASTER_ADDR {environment['MASTER_ADDR']}, MASTER_PORT {environment['MASTER_PORT']}"
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=JOIN_SECONDS)))
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise PreflightError(
            f"{where}: the {world_size} ranks did not meet ({reason}); see that all of them run and reach that address"
        ) from error
    return Ranks(rank=rank, world_size=world_size, local_rank=local_rank, store=store)


def is_started_again(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun has started these ranks before, within the same command."""
    return environment.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def place(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Rank, world size and rank on this host, as torchrun and deepspeed say, or else srun."""
    for names in _LAUNCHERS:
        if names[0] not in environment:
            continue
        try:
            rank, world_size, local_rank = (int(environment[name]) for name in names)
        except (KeyError, ValueError):
            raise PreflightError(f"--launcher env: {', '.join(names)} must all be whole numbers") from None
        return rank, world_size, local_rank
    raise PreflightError(
        "--launcher env: neither RANK nor SLURM_PROCID is set; start with torchrun, deepspeed or srun, or leave the "
        "option out"
    )


def address(environment: Mapping[str, str]) -> dict[str, str]:
    """Where rank 0 answers, as far as a launcher has not said so: the first host of a Slurm job, otherwise this one."""
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    job = int(environment.get("SLURM_JOB_ID", "0"))  # two jobs on a host must not meet
    return {"MASTER_ADDR": first_host(hosts), "MASTER_PORT": str(20_000 + job % 10_000)}


def first_host(hosts: str) -> str:
    """`gpu[03-07,12],login` is Slurm's for gpu03, gpu04, …: `gpu03`."""
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", hosts)
    return "".join(part or "" for part in found.groups()) if found else hosts


def pick_device(local_rank: int, *, use_gpu: bool) -> "torch.device":
    """The CPU, or this rank's GPU: the only one it is shown, or that of its number on the host."""
    import torch

    if not use_gpu:
        return torch.device("cpu")
    shown = torch.cuda.device_count()
    if (shown > 1 and local_rank >= shown) or shown == 0:
        raise PreflightError(
            f"cluster.use_gpu: rank {local_rank} of this host finds {shown} GPUs; start as many processes as there are "
            "GPUs, or set cluster.use_gpu=false"
        )
    return torch.device("cuda", local_rank if shown > 1 else 0)
