"""A cluster section and a job as the tests of `cluster.render` take them."""

from typing import Any

from cluster.config import ClusterConfig
from cluster.render import Job

TOKEN = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ0" + "abcdefg"
HERE = {"NCCL_DEBUG": "INFO", "HF_TOKEN": TOKEN, "OTHER": "not named"}
EXPERIMENT = """name: tiny
note: 'it''s $HOME `id` "é"'
end: |
  END_OF_EXPERIMENT
secrets:
- HF_TOKEN
secret_name: electra-tokens
"""


def cluster(
    *, num_workers: int = 8, use_gpu: bool = True, min_workers: int | None = None, **submit: Any
) -> ClusterConfig:
    """Two nodes with four GPUs each; `submit` changes keys of the section."""
    group = {"name": "h100", "replicas": 2, "gpus": 4, "cpus": 32, "memory": "256Gi"}
    section = {
        "image": "registry.example/electra:1",
        "shared": {"path": "/shared", "claim": "electra-data"},
        "env": ["NCCL_DEBUG"],
        "secrets": ["HF_TOKEN"],
        "secret_name": "electra-tokens",
        "worker_groups": [group],
        **submit,
    }
    return ClusterConfig.model_validate(
        {"num_workers": num_workers, "use_gpu": use_gpu, "min_workers": min_workers, "submit": section}
    )


def job(*words: str, id: str = "electra-tiny-train-0123abcd", out: str = "/shared/runs/tiny") -> Job:
    return Job(id=id, words=words or ("python", "-m", "pipeline.cli", "train"), experiment=EXPERIMENT, out=out)
