"""Objectives against plain loops in float64; which loss reaches which network; what a sample may not change."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from data_prep.rows import structure
from tests.training.cases import ARMS, CASES, ENCODER, LAYOUT_IDS, LAYOUTS, ROBERTA, SAMPLING, Prepared, prepared
from tests.training.plain import plain_losses, plain_total
from tests.training.synthetic import SEQ_LEN, SPECIAL
from training import attention, encoder
from training.arms import BertArm
from training.masking import RowKeys
from training.objectives import Objective, Outputs, RowBatch, build, counts, to_device

CPU = torch.device("cpu")
SAMPLES = [name for name in SAMPLING if name in ARMS]


def stirred(case: Prepared) -> Prepared:
    """In float64, and far from the initial weights, at which biases are 0 and every softmax is flat."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in case.objective.double().parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return case


def run(case: Prepared) -> Outputs:
    outputs: Outputs = case.objective(to_device(case.host, CPU))
    return outputs


def total(objective: Objective, outputs: Outputs) -> Tensor:
    """The loss as the loop takes it."""
    parts = [t.weight * outputs.sums[t.name] / outputs.statistics[t.count] for t in objective.loss_terms()]
    return torch.stack(parts).sum()


def trainable(objective: Objective) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in objective.named_parameters() if parameter.requires_grad}


def gradients(loss: Tensor, objective: Objective) -> dict[str, Tensor | None]:
    """By name, for what is trained; None where the loss does not depend on it."""
    parameters = trainable(objective)
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, retain_graph=True)
    return dict(zip(parameters, found, strict=True))


RATIOS: dict[str, Callable[[dict[str, float]], float]] = {
    "mlm_accuracy": lambda m: m["mlm_hits"] / m["masked"],
    "sampled_accuracy": lambda m: m["sampled_hits"] / m["masked"],
    "replaced_rate": lambda m: m["replaced"] / m["real"],
    "replaced_accuracy": lambda m: m["replaced_hits"] / m["masked"],
    "corrected_accuracy": lambda m: m["corrected"] / m["replaced"],
    "kept_accuracy": lambda m: m["kept"] / (m["real"] - m["replaced"]),
    "all_tokens_accuracy": lambda m: (m["corrected"] + m["kept"]) / m["real"],
    "nsp_accuracy": lambda m: m["nsp_hits"] / m["pairs"],
    "reward": lambda m: m["reward"] / m["masked"],
}


def assert_equals_plain(case: Prepared, forced: int | None = None) -> None:
    outputs, expected = run(case), plain_losses(case.arm, case.objective, case.host, case.special, forced)
    assert outputs.sums.keys() == expected.sums.keys() == {term.name for term in case.objective.loss_terms()}
    for name, value in expected.sums.items():
        assert outputs.sums[name].item() == pytest.approx(value.item(), rel=1e-9), name
    losses = {f"{name}_loss" for name in expected.sums}
    assert outputs.statistics.keys() - losses - {"histogram"} == expected.measured.keys() - losses
    for name, value in expected.measured.items():
        assert outputs.statistics[name].item() == pytest.approx(float(value), rel=1e-9), name
    loss, plain_loss = total(case.objective, outputs), plain_total(case.arm, expected)
    figures = case.objective.metrics({name: value.double().numpy() for name, value in outputs.statistics.items()})
    assert loss.item() == pytest.approx(plain_loss.item(), rel=1e-9)
    assert figures["loss"] == pytest.approx(plain_loss.item(), rel=1e-9)
    measured = {name: float(value) for name, value in expected.measured.items()}
    for name, of in RATIOS.items():
        if name in figures:
            assert figures[name] == pytest.approx(of(measured), rel=1e-9), name
    ours, theirs = gradients(loss, case.objective), gradients(plain_loss, case.objective)
    for name, gradient in theirs.items():
        found = ours[name]
        assert gradient is not None and found is not None, name
        scale = gradient.abs().max().item()
        assert scale > 0, name
        torch.testing.assert_close(found, gradient, rtol=0, atol=1e-9 * scale, msg=name)


@pytest.mark.parametrize(("name", "packed"), LAYOUTS, ids=LAYOUT_IDS)
def test_losses_and_gradients_equal_plain_loops_in_float64(name: str, packed: bool) -> None:
    """Also: every trainable parameter of every objective receives a gradient."""
    assert_equals_plain(stirred(prepared(CASES[name], packed=packed, count=4)))


def test_a_frozen_generator_keeps_its_dropout_in_training() -> None:
    """As a trained one has, also while it samples; none in evaluation."""
    model = ENCODER.model_copy(update={"dropout": 0.2})
    case = prepared(CASES["electra_two_stage"], model=model)
    batch = to_device(case.host, CPU)
    torch.manual_seed(3)
    case.objective.train()
    first, second = (case.objective.generator(batch).statistics["mlm_loss"] for _ in range(2))
    assert first != second
    case.objective.eval()
    first, second = (case.objective.generator(batch).statistics["mlm_loss"] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", ARMS)
def test_a_roberta_vocabulary_works_everywhere(name: str) -> None:
    """Special ids in other places, two separators between the segments of a pair, one token type."""
    model = ENCODER.model_copy(update={"type_vocab": 1})
    case = prepared(ARMS[name], special=ROBERTA, separators=2, model=model, count=4)
    used = case.host["mask_weights"] > 0
    stored = np.take_along_axis(case.host["ids"], case.host["mask_positions"], axis=1)[used]
    shown = np.take_along_axis(case.host["inputs"], case.host["mask_positions"], axis=1)[used]
    assert not np.isin(stored, [ROBERTA.cls, ROBERTA.sep, ROBERTA.pad]).any()
    assert ROBERTA.mask in shown and (shown == stored).any()
    assert_equals_plain(stirred(case))


@pytest.mark.parametrize("name", SAMPLING)
def test_losses_reach_the_other_network_only_through_what_is_shared(name: str) -> None:
    """The generator's loss reaches the generator's parameters, the main network's loss the main network's, and neither
    any other; a policy is rewarded, a baseline sees a detached state, a frozen generator moves nothing."""
    case = stirred(prepared(CASES[name]))
    objective, sums = case.objective, run(case).sums
    networks = objective.networks()
    main = {id(p) for p in networks[objective.main].parameters().values()}
    generator = {id(p) for p in networks["generator"].parameters().values()}
    shared = {n.split(".")[0] for n, p in networks["generator"].parameters().items() if id(p) in main}
    tying = getattr(getattr(case.arm, "generator", None), "tying", "none")
    assert shared == {"all": {"embeddings", "encoder"}, "token": {"embeddings"}, "none": set()}[tying]
    parameters = trainable(objective)
    learned = {id(p) for p in parameters.values()}
    baseline = {id(p) for n, p in parameters.items() if n == "generator.baseline.weight"}
    reach = {
        "mlm": generator,
        "policy": generator,
        "baseline": baseline,
        "rtd": main,
        "replaced": main,
        "all_tokens": main,
    }
    for term, loss in sums.items():
        found = {id(parameters[n]) for n, gradient in gradients(loss, objective).items() if gradient is not None}
        assert found == reach[term], term
    frozen = not sums.keys() & {"mlm", "policy"}
    assert learned == main | baseline if frozen else learned == main | generator | baseline
    assert not (frozen and learned & generator)


@pytest.mark.parametrize("token", [SPECIAL.pad, SPECIAL.sep, SPECIAL.cls])
@pytest.mark.parametrize(("name", "packed"), [(name, packed) for name in SAMPLES for packed in (False, True)])
def test_a_sampled_special_token_changes_nothing_but_its_own_embedding(name: str, packed: bool, token: int) -> None:
    """A generator that samples nothing but [PAD] does what one does that samples a word of the same embedding, bit for
    bit: fragments, positions, attention, counts and losses are those of the stored row."""
    case = stirred(prepared(CASES[name], packed=packed, count=4))
    word = next(w for w in range(5, 96) if w not in case.host["ids"])
    tables = {id(p): p for n, p in case.objective.named_parameters() if n.endswith(("word.weight", "head.bias"))}
    with torch.no_grad():
        for table in tables.values():
            table[token] = table[word]
    outputs = []
    for sample in (word, token):
        case.objective.generator.sample = lambda logits, batch, sample=sample: torch.full_like(
            batch["mask_labels"], sample
        )
        outputs.append(run(case))
    for key, value in outputs[0].statistics.items():
        assert torch.equal(value, outputs[1].statistics[key]), key
    assert outputs[0].statistics["real"] == (case.host["fragment"] > 0).sum()


@pytest.mark.parametrize("name", SAMPLES)
def test_losses_equal_plain_loops_where_padding_is_sampled(name: str) -> None:
    case = stirred(prepared(CASES[name], packed=True, count=3))
    case.objective.generator.sample = lambda logits, batch: torch.full_like(batch["mask_labels"], SPECIAL.pad)
    assert_equals_plain(case, forced=SPECIAL.pad)


@pytest.mark.parametrize(("name", "packed"), LAYOUTS, ids=LAYOUT_IDS)
def test_filler_rows_weigh_nothing(name: str, packed: bool) -> None:
    """Rows of padding, prepared as the loader prepares them."""
    case = stirred(prepared(CASES[name], packed=packed))
    whole = run(case)
    padded = run(Prepared(case.arm, case.objective, with_filler(case), case.special))
    assert whole.statistics.keys() == padded.statistics.keys()
    for key, value in whole.statistics.items():
        torch.testing.assert_close(padded.statistics[key], value, rtol=1e-12, atol=0, msg=key)


def with_filler(case: Prepared) -> dict[str, np.ndarray]:
    padding = np.full((2, SEQ_LEN), SPECIAL.pad)
    keys = RowKeys(1, np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64))
    none = (padding, np.zeros(2, dtype=np.int64), np.zeros(2, dtype=bool))
    filler = case.objective.prepare(RowBatch(padding, structure(padding, SPECIAL), keys, lambda draws: none))
    assert counts(filler) == dict.fromkeys(counts(filler), 0)
    return {name: np.concatenate([array, filler[name]]) for name, array in case.host.items()}


@pytest.mark.parametrize("name", ARMS)
def test_every_network_is_told_how_many_runs_there_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the run back-ends would otherwise take from the row length alone, many times as many."""
    case, told = prepared(ARMS[name], packed=name != "bert"), []

    def layout(fragment: Tensor, *, runs: int | None, **how: object) -> attention.Layout:
        told.append(runs)
        return attention.layout(fragment, runs=runs, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(encoder, "layout", layout)
    run(case)
    mean = np.mean([1 + np.count_nonzero(np.diff(row)) for row in case.host["fragment"]])
    assert told == [2 if mean <= 2 else 4] * len(case.objective.networks()) and mean <= 4


def test_bert_refuses_packed_rows() -> None:
    with pytest.raises(ValueError, match="layout 'segments'"):
        build(BertArm(learning_rate=1e-3), ENCODER, SPECIAL, seq_len=32, packed=True)
