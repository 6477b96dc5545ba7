"""What the store does on its own: short time-outs, names in MLflow's alphabet, flat parameters."""

import os

import pytest

from pipeline.mlflow_store import flatten, metric_name, quick_to_fail


def test_short_time_outs_leave_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    with quick_to_fail():
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_names_are_put_into_mlflows_alphabet() -> None:
    assert metric_name("heldout/mlm_loss") == "heldout/mlm_loss"
    assert metric_name("f1(macro)") == "f1_macro_"
    assert metric_name("/loss@x//y") == "loss_x/y"


def test_nested_parameters_become_dotted_and_short() -> None:
    found = flatten({"a": {"b": 1, "c": {"d": [1, 2]}}, "e": "x" * 600})
    assert found["a.b"] == "1"
    assert found["a.c.d"] == "[1, 2]"
    assert len(found["e"]) == 500
