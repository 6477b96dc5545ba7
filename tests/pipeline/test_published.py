"""The published models: their FLOPs are the original script's, and the means of Table 2 are those of its tasks."""

import pytest

from pipeline.published import MODELS, TASKS, Model

BY_NAME = {model.name: model for model in MODELS}

# what google-research/electra's flops_computation.py prints
SCRIPT = {
    "ELMo": 3.4114394716164127e18,
    "GPT": 3.968752230785352e19,
    "BERT-Small": 1.4187399146496e18,
    "BERT-Base": 6.428335104e19,
    "BERT-Large": 1.91720905883648e20,
    "XLNet": 3.856582065028608e21,
    "RoBERTa-500K": 3.187221435776e21,
    "ELECTRA-Small": 1.293743798272e18,
    "ELECTRA-Base": 6.424541834277683e19,
    "ELECTRA-400K": 7.117606040895488e20,
    "ELECTRA-1.75M": 3.113952642891776e21,
}


@pytest.mark.parametrize("name", SCRIPT)
def test_training_flops_are_the_scripts(name: str) -> None:
    assert BY_NAME[name].flops == SCRIPT[name]


def test_training_flops_of_fewer_digits() -> None:
    assert BY_NAME["BERT-Large (ours)"].flops == pytest.approx(7.11668e20, rel=1e-5)
    assert BY_NAME["RoBERTa-100K"].flops == pytest.approx(6.37444e20, rel=1e-5)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_what_is_recomputed_is_what_the_paper_prints(model: Model) -> None:
    """But for ELMo (3.4 for 3.3), and ELECTRA-Small, whose row no generator of 64 gives (1.29 for 1.4)."""
    if model.name.startswith("ELECTRA-Small"):
        assert model.flops / model.flops_printed == pytest.approx(1.294e18 / 1.42e18, rel=0.02)
    elif model.name == "ELMo":
        assert model.flops / model.flops_printed == pytest.approx(3.41 / 3.3, rel=1e-2)
    else:
        assert f"{model.flops:.1e}" == f"{model.flops_printed:.1e}"


@pytest.mark.parametrize("model", [model for model in MODELS if model.tasks], ids=lambda model: model.name)
def test_the_mean_of_table_2_is_of_its_eight_tasks(model: Model) -> None:
    """To the digit printed; BERT's, XLNet's and others' tasks are rounded, so their mean may be .05 away."""
    assert list(model.tasks) == list(TASKS)
    assert sum(model.tasks.values()) / 8 == pytest.approx(model.glue, abs=0.051)


def test_models_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(MODELS) == 17
