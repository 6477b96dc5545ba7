"""What other schedulers are given: one text for each job, and what is wrong with it, found before anything is sent.

`kuberay.render` and `slurm.render` make it from the experiment's `cluster` section. Nothing here sends, and nothing
reaches a network; loads neither torch nor ray. A text holds names of secrets, never values of them, as far as the
section and the environment say which they are; who prints it redacts it all the same (`data_prep.redact`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be run over there."""

    id: str  # the submission id: a DNS-1035 label, which Kubernetes and Slurm take as a name
    words: tuple[str, ...]  # the command, whose configuration is read from the backend's `config_path`
    experiment: str  # that configuration: the YAML text of `pipeline.config.dump`
    out: str  # the folder on the shared volume where results go


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A text, the command that takes it on its standard input, and the reasons not to send it, one sentence each."""

    text: str
    command: tuple[str, ...]
    findings: tuple[str, ...]
