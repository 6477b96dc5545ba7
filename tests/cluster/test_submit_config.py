"""The section that says how an experiment is sent."""

from typing import Any

import pytest
from pydantic import ValidationError

from cluster.config import ClusterConfig
from cluster.submit_config import SubmitConfig


def test_the_time_to_stop_goes_with_every_job_and_only_named_variables_do() -> None:
    submit = SubmitConfig(env=["NCCL_DEBUG", "NOT_SET"], secrets=["HF_TOKEN"], stop_seconds=450)
    here = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "a value", "HOME": "/root"}
    assert submit.environment(here) == {"NCCL_DEBUG": "INFO", "RAY_JOB_STOP_WAIT_TIME_S": "450"}
    assert ClusterConfig().submit.environment({}) == {"RAY_JOB_STOP_WAIT_TIME_S": "300"}


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"env": ["AWS_SECRET_ACCESS_KEY"]}, "AWS_SECRET_ACCESS_KEY names a secret; list it in `secrets`"),
        ({"env": ["A=b"]}, "should match pattern"),
        ({"secrets": ["HF_TOKEN=hf_x"]}, "should match pattern"),
        ({"worker_groups": []}, "at least 1 item"),
        ({"worker_groups": [{"replicas": 2, "min_replicas": 3}]}, "min_replicas 3 is more than replicas 2"),
        ({"worker_groups": [{"name": "a"}, {"name": "a"}]}, "two groups are called 'a'"),
        ({"worker_groups": [{"memory": "64GB"}]}, "should match pattern"),
        ({"shared": {"path": "shared"}}, "should match pattern"),
        ({"stop_seconds": 3}, "greater than or equal to 30"),
        ({"slurm": {"partition": "gpu --wrap=id"}}, "should match pattern"),
        ({"slurm": {"setup": ["true\n#SBATCH --uid=0"]}}, "should match pattern"),
        ({"python": "python; id"}, "should match pattern"),
    ],
)
def test_what_it_refuses(section: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        SubmitConfig.model_validate(section)
