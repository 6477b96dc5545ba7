"""A batch script for Slurm from the `cluster` section: `ray symmetric-run` on every node, the driver on the first.

The script carries the configuration in itself, so that what is queued again is what was submitted. `stop_seconds`
before the time limit (or when it is preempted, where PreemptParameters has send_user_signal; or by
`scancel --batch --signal=USR1`) the driver saves and ends with 75, and the job is queued again, at most `retries`
times; a job that somebody stopped with `electra stop` ends with 75 and is not. Ray's token is made anew on the nodes
each time. Secrets are named to --export, which takes their values from the environment of `sbatch`.
"""

import shlex
from collections.abc import Iterator

from cluster.config import ClusterConfig
from cluster.render import Job, Rendered, rules
from cluster.submit_config import SubmitConfig

_LEAVE_SECONDS = 60  # after saving, for Ray to end, before the limit kills
_LONGEST_NOTICE = 65535  # seconds, of sbatch's --signal
_JOIN_SECONDS = 600  # that nodes may start apart, image pulls included
_ALWAYS = ("PATH", "HOME", "USER")
_UNITS = {"Mi": "M", "Gi": "G", "Ti": "T"}

# Bash, in four parts; what goes in is quoted by `shlex`.
_BEGIN = """
set -u -o pipefail
umask 077
readonly state="/tmp/electra-$SLURM_JOB_ID"
rm -rf "$state"
mkdir "$state"
trap 'rm -rf "$state"' EXIT
{setup}
cat >{config} <<'{mark}'
{experiment}{mark}
"""
_RAY = """
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
printf -v RAY_AUTH_TOKEN %s "$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')"
export RAY_AUTH_TOKEN
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT={join}
head="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
port=$((20000 + SLURM_JOB_ID % 10000))
export RAY_ADDRESS="$head:$port"  # Ray itself looks for it where --temp-dir has not put it

# On the first node, which is this one: the driver, its process and how it ended. SIGTERM has it save and end with 75.
# shellcheck disable=SC2016
readonly drive='"$@" & echo $! >"$0/process"; wait $!; code=$?; echo $code >"$0/new"; mv "$0/new" "$0/code"; exit $code'
# shellcheck disable=SC2016
srun --nodes={nodes} --ntasks-per-node=1 --cpus-per-task={cpus} --export=ALL --kill-on-bad-exit=0 \\
  ray symmetric-run --address "$RAY_ADDRESS" --min-nodes {nodes} --num-cpus={cpus} --num-gpus={gpus} \\
  --temp-dir="/tmp/electra-ray-$SLURM_JOB_ID" -- \\
  bash -c "$drive" "$state" {words} &
readonly step=$!
"""
_WAIT = """
asked=0
trap 'asked=1' USR1 TERM
while kill -0 "$step" 2>/dev/null && ! [[ -s "$state/code" ]]; do
  if ((asked)) && [[ -s "$state/process" ]]; then
    kill -TERM "$(<"$state/process")" 2>/dev/null
  fi
  sleep 5 &>/dev/null &
  wait -n
done
"""
_END = """
if [[ -s "$state/code" ]]; then
  code="$(<"$state/code")"
else
  code=3
  echo "electra: Ray did not start on $SLURM_JOB_NODELIST, or its first node has gone; see above" >&2
fi
for ((second = 0; second < {leave}; second++)); do
  kill -0 "$step" 2>/dev/null || break
  sleep 1
done
kill "$step" 2>/dev/null
if ((code == 75 && asked)); then
  if ((${{SLURM_RESTART_COUNT:-0}} < {retries})); then
    scontrol requeue "$SLURM_JOB_ID"
  else
    echo "electra: saved; queued again {retries} times already (cluster.submit.retries): submit again to go on" >&2
  fi
fi
exit "$code"
"""


def config_path(submit: SubmitConfig, job_id: str) -> str:
    """Where the driver finds its configuration: the script writes it there."""
    return f"{submit.shared.path.rstrip('/')}/{job_id}.yaml"


def render(job: Job, cluster: ClusterConfig) -> Rendered:
    """The job's script. Of the environment only names are in it."""
    submit = cluster.submit
    text = "\n".join(["#!/usr/bin/env bash", *(f"#SBATCH --{option}" for option in _options(job, submit))])
    text += _body(job, submit)
    return Rendered(text=text, command=("sbatch",), findings=(*rules.fits(cluster), *_findings(submit)))


def _options(job: Job, submit: SubmitConfig) -> Iterator[str]:
    group, slurm, shared = submit.worker_groups[0], submit.slurm, submit.shared.path.rstrip("/")
    yield f"job-name={job.id}"
    yield f"nodes={group.replicas}"
    yield "ntasks-per-node=1"
    yield "exclusive"  # `ray symmetric-run` begins on a node without Ray, and ends with a `ray stop` for all of it
    yield f"cpus-per-task={group.cpus}"
    yield f"mem={group.memory[:-2]}{_UNITS[group.memory[-2:]]}"
    if group.gpus:
        yield f"gpus-per-node={group.gpus}"
    yield f"time={slurm.time_minutes}"
    for name, value in (
        ("partition", slurm.partition),
        ("account", slurm.account),
        ("constraint", slurm.constraint),
        ("qos", submit.priority),
    ):
        if value is not None:
            yield f"{name}={value}"
    yield f"signal=B:USR1@{submit.stop_seconds + _LEAVE_SECONDS}"  # to this script alone, which hands it on
    yield "requeue"
    yield "open-mode=append"
    yield f"chdir={shared or '/'}"
    yield f"output={shared}/%x-%j.log"
    yield f"export={','.join(dict.fromkeys([*_ALWAYS, *submit.env, *submit.secrets]))}"


def _body(job: Job, submit: SubmitConfig) -> str:
    group = submit.worker_groups[0]
    mark = "END_OF_EXPERIMENT"
    while mark in job.experiment:
        mark += "_"
    experiment = job.experiment if job.experiment.endswith("\n") else f"{job.experiment}\n"
    begin = _BEGIN.format(
        setup="\n".join(_setup(submit)),
        config=shlex.quote(config_path(submit, job.id)),
        mark=mark,
        experiment=experiment,
    )
    ray = _RAY.format(
        join=submit.start_seconds or _JOIN_SECONDS,
        nodes=group.replicas,
        cpus=group.cpus,
        gpus=group.gpus,
        words=shlex.join(job.words),
    )
    end = _END.format(leave=_LEAVE_SECONDS, retries=submit.retries)
    return begin + ray + _WAIT + end


def _setup(submit: SubmitConfig) -> Iterator[str]:
    yield from submit.slurm.setup
    folder, slash, _ = submit.python.rpartition("/")
    if slash:  # `ray` lies beside it
        yield f'export PATH={shlex.quote(folder)}:"$PATH"'
    yield f"export {rules.STOP}={submit.stop_seconds}"


def _findings(submit: SubmitConfig) -> Iterator[str]:
    """What Slurm cannot do, by the key that asks for it."""
    if len(submit.worker_groups) > 1:
        yield "cluster.submit.worker_groups: Slurm takes one group of nodes alike; leave the others out"
    group = submit.worker_groups[0]
    if group.min_replicas is not None and group.min_replicas < group.replicas:
        yield "cluster.submit.worker_groups.0.min_replicas: Slurm gives all nodes or none; leave it out"
    if group.node_selector or group.tolerations:
        yield "cluster.submit.worker_groups.0: node_selector and tolerations are Kubernetes'; set slurm.constraint"
    if submit.stop_seconds + _LEAVE_SECONDS > _LONGEST_NOTICE:
        yield (
            f"cluster.submit.stop_seconds: {submit.stop_seconds} are more than Slurm can signal before the limit; "
            f"{_LONGEST_NOTICE - _LEAVE_SECONDS} at most"
        )
    if submit.stop_seconds + _LEAVE_SECONDS >= submit.slurm.time_minutes * 60:
        yield (
            f"cluster.submit.slurm.time_minutes: {submit.slurm.time_minutes} leave nothing beside stop_seconds "
            f"{submit.stop_seconds} and {_LEAVE_SECONDS} for Ray to end; raise it"
        )
