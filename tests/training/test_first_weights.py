"""First weights: what the networks then hold, what is told of it, and whole runs that begin so."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from data_prep import storage
from data_prep.errors import CheckpointError, ConfigError
from tests.training import synthetic
from tests.training.origins import (
    ELECTRA,
    ENCODER,
    RATE,
    assert_filled,
    hugging_face,
    network_at,
    objective_of,
    plan,
    run_of,
    stored,
    tensors_of,
    trained,
)
from tests.training.runs import CPU, cut_back, done, events, weights
from tests.training.synthetic import write_corpus
from training import checkpoints, first_weights, origin
from training.arms import BertArm, ElectraTwoStageArm, MlmArm, ReplaceMlmArm, UniformGenerator
from training.checkpoints import Progress
from training.first_weights import begin, inherited
from training.loop import train

pytestmark = pytest.mark.usefixtures("process_group")


def test_electra_goes_on_with_both_its_networks(experiment: Path, corpus: Path, tmp_path: Path) -> None:
    source = run_of(experiment, "electra")
    (spec,) = plan(ELECTRA.model_copy(update={"init_from": [source]}), corpus)
    objective = objective_of(spec)
    told = begin(objective, spec, tmp_path)
    for name, network in objective.networks().items():
        assert_filled(network, network_at(source, name))
    assert [(event["network"], event["lacked"]) for event in told] == [("discriminator", []), ("generator", [])]
    for event in told:
        (given,) = event["from"]
        assert (given["differs"], given["vocabulary"]) == ([], True)
        assert given["flops"] == done(source)["flops_counted"]


def test_bert_as_a_discriminator_lacks_its_head_and_leaves_the_generator(
    experiment: Path, corpus: Path, tmp_path: Path
) -> None:
    source = run_of(experiment, "bert")
    (spec,) = plan(ELECTRA.model_copy(update={"init_from": [source]}), corpus)
    objective = objective_of(spec)
    before = {name: tensors_of(network) for name, network in objective.networks().items()}
    told = begin(objective, spec, tmp_path)
    networks, trained_to = objective.networks(), network_at(source, "encoder")
    assert_filled(networks["discriminator"], trained_to, but="heads.rtd")
    assert_filled(networks["generator"], trained_to | before["generator"], but="embeddings")
    assert torch.equal(
        networks["generator"].parameters()["embeddings.word.weight"], trained_to["embeddings.word.weight"]
    )
    assert (told[0]["network"], told[0]["lacked"]) == ("discriminator", ["heads.rtd"])
    assert told[1] == {"event": "weights", "network": "generator", "from": [], "lacked": ["encoder", "heads.mlm"]}


def test_of_several_folders_the_first_that_has_a_tensor_gives_it(corpus: Path, tmp_path: Path) -> None:
    """Discriminator and generator as published: two folders, each with embeddings of its own."""
    first = hugging_face(tmp_path / "first", "ElectraForPreTraining", seed=5)
    second = hugging_face(tmp_path / "second", "ElectraForMaskedLM", ENCODER.scaled(0.5, 1.0), seed=6)
    arm = ELECTRA.model_copy(update={"init_from": [tmp_path / "first", tmp_path / "second"]})
    (spec,) = plan(arm, corpus)
    assert spec.inherited == 0.0
    assert inherited(spec, tmp_path) == checkpoints.Progress()
    objective = objective_of(spec)
    told = begin(objective, spec, tmp_path)
    networks = objective.networks()
    assert_filled(networks["discriminator"], tensors_of(first))
    assert_filled(networks["generator"], tensors_of(second), but="embeddings")
    assert [(event["network"], event["lacked"]) for event in told] == [("discriminator", []), ("generator", [])]
    assert [given["folder"] for event in told for given in event["from"]] == [str(path) for path in arm.init_from]
    assert [given["differs"] for event in told for given in event["from"]] == [[], ["embeddings"]]
    assert {(given["flops"], given["vocabulary"]) for event in told for given in event["from"]} == {(None, False)}


def test_a_part_is_lacked_where_no_folder_has_it(corpus: Path, experiment: Path, tmp_path: Path) -> None:
    """The first folder has no head for replaced tokens, the second has: nothing is random."""
    hugging_face(tmp_path / "hf", "ElectraForPreTraining")
    bert = run_of(experiment, "bert")
    for folders, lacked in (([bert, tmp_path / "hf"], []), ([bert], ["heads.rtd"])):
        (spec,) = plan(ELECTRA.model_copy(update={"init_from": folders}), corpus)
        discriminator, generator = begin(objective_of(spec), spec, tmp_path)
        assert discriminator["lacked"] == lacked
        assert len(discriminator["from"]) == len(folders)
        assert (generator["from"], generator["lacked"]) == ([], ["encoder", "heads.mlm"])


def test_a_generator_alone_fills_an_arm_that_trains_none(corpus: Path, tmp_path: Path) -> None:
    stored = hugging_face(tmp_path / "hf", "ElectraForMaskedLM")
    for arm in (
        MlmArm(learning_rate=RATE, init_from=[tmp_path / "hf"]),
        ReplaceMlmArm(learning_rate=RATE, init_from=[tmp_path / "hf"], generator=UniformGenerator()),
    ):
        (spec,) = plan(arm, corpus)
        objective = objective_of(spec)
        (told,) = begin(objective, spec, tmp_path)
        assert_filled(objective.networks()["encoder"], tensors_of(stored))
        assert (told["network"], told["lacked"]) == ("encoder", [])


def test_other_contents_than_planned_are_refused(experiment: Path, corpus: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_of(experiment, "bert"), tmp_path / "run")
    (spec,) = plan(BertArm(learning_rate=RATE, init_from=[run]), corpus)
    (folder,) = spec.placement.init["weights"]
    last, earlier = Path(folder), run / "checkpoints" / "step-00000002"
    part = last / "part-00000.safetensors"
    content = part.read_bytes()
    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"part-00000\.safetensors was cut or altered"):
        begin(objective_of(spec), spec, tmp_path)
    shutil.rmtree(last)
    with pytest.raises(CheckpointError, match=f"no checkpoint is there, and {spec.name.replace('+', '.')} begins with"):
        begin(objective_of(spec), spec, tmp_path)
    earlier.rename(last)
    with pytest.raises(ConfigError, match=r"holds .*@2, and .* was planned to begin with .*@4"):
        begin(objective_of(spec), spec, tmp_path)


def test_rank_0_looks_for_all(experiment: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it finds wrong is raised everywhere; the others hash nothing, and read what it has seen."""
    hugging_face(tmp_path / "hf", "ElectraForMaskedLM", ENCODER.scaled(0.5, 1.0))
    arm = ELECTRA.model_copy(update={"init_from": [run_of(experiment, "bert"), tmp_path / "hf"]})
    (spec,) = plan(arm, corpus)
    verdicts: list[Any] = []
    monkeypatch.setattr(first_weights, "on_rank_zero", lambda action: verdicts.append(action()) or verdicts[-1])
    one, two = objective_of(spec), objective_of(spec)
    told = begin(one, spec, tmp_path)

    def refuse(*_: object) -> str:
        raise AssertionError

    monkeypatch.setattr(storage, "sha256_of", refuse)
    origin._hugging_face.cache_clear()
    monkeypatch.setattr(first_weights, "on_rank_zero", lambda _: pickle.loads(pickle.dumps(verdicts[0])))
    assert begin(two, spec, tmp_path) == told
    for (name, ours), (_, theirs) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name

    def fail(_: object) -> None:
        raise CheckpointError("cut")

    monkeypatch.setattr(first_weights, "on_rank_zero", fail)
    with pytest.raises(CheckpointError, match="cut"):
        begin(two, spec, tmp_path)


def test_a_frozen_generator_without_a_plan_is_refused(corpus: Path, tmp_path: Path) -> None:
    _, second = plan(ElectraTwoStageArm(learning_rate=RATE), corpus)
    bare = second.model_copy(update={"identity": second.identity.model_copy(update={"init": {}})})
    bare = bare.model_copy(update={"placement": second.placement.model_copy(update={"init": {}})})
    with pytest.raises(ConfigError, match="has a frozen generator and nothing to fill it from"):
        begin(objective_of(bare), bare, tmp_path)


# --- whole runs -------------------------------------------------------------------------------------------------------


def test_two_stages(corpus: Path, tmp_path: Path) -> None:
    """The discriminator begins as the masked language model, which stays as it is to the last step and after a resume;
    the ledgers hold both stages and meet the budget."""
    budget = 5e8
    specs = plan(ElectraTwoStageArm(learning_rate=RATE), corpus, budget=budget)
    with pytest.raises(CheckpointError, match=r"no checkpoint is there, and electra_two_stage.* train that run first"):
        train(specs[1], corpus, tmp_path / specs[1].name, CPU)
    first, second = trained(specs, corpus, tmp_path)
    start = network_at(first, "encoder", specs[0].steps)

    objective = objective_of(specs[1])
    begin(objective, specs[1], second)
    networks = objective.networks()
    assert_filled(networks["discriminator"], start, but="heads.rtd")
    assert_filled(networks["generator"], start)
    shared = {id(p) for p in networks["discriminator"].parameters().values()}
    assert shared.isdisjoint(id(p) for p in networks["generator"].parameters().values())

    steps = specs[1].steps
    assert steps >= 5
    for step in (2, steps):
        now = network_at(second, "generator", step)
        assert all(torch.equal(now[name], start[name]) for name in start)
    learned = network_at(second, "discriminator", steps)
    assert not any(torch.equal(learned[name], start[name]) for name in start if name.startswith("encoder.layers"))

    told = [event for event in events(second) if event["event"] == "weights"]
    assert [(event["network"], event["lacked"]) for event in told] == [
        ("discriminator", ["heads.rtd"]),
        ("generator", []),
    ]
    before, whole = done(first), done(second)
    assert before["flops_counted"] == pytest.approx(specs[1].inherited, rel=1e-12)
    assert whole["flops_counted"] == pytest.approx(specs[1].inherited + steps * specs[1].flops_per_step, rel=1e-12)
    assert abs(before["flops_counted"] - budget / 2) <= specs[0].flops_per_step
    assert abs(whole["flops_counted"] - budget) <= max(0.01 * budget, specs[1].flops_per_step)
    for ledger in ("flops_spent", "flops_executed", "flops_paper", "tokens", "seconds"):
        assert whole[ledger] > before[ledger] > 0, ledger
    progress = checkpoints.read(second / "checkpoints" / f"step-{steps:08d}").progress
    assert {run: ledger.step for run, ledger in progress.inherited.items()} == {
        specs[0].identity.fingerprint(): specs[0].steps
    }
    assert whole["inherited"]["flops_counted"] == before["flops_counted"]
    own = whole["tokens"] - before["tokens"], whole["seconds"] - before["seconds"]
    assert whole["tokens_per_second"] == pytest.approx(own[0] / own[1])
    assert progress.position == (specs[0].steps + steps) * specs[1].identity.global_batch  # one stream
    assert json.loads((first / "run.json").read_text())["part_of"] == specs[1].name
    assert json.loads((second / "run.json").read_text())["part_of"] is None

    end = weights(second, steps)
    cut_back(second, 2)
    shutil.rmtree(first)  # a resumed run needs nothing of it
    train(specs[1], corpus, second, CPU)
    again = weights(second, steps)
    assert all(torch.equal(again[name], end[name]) for name in end)
    assert done(second)["flops_counted"] == whole["flops_counted"]


def test_a_second_stage_reads_on_where_the_first_one_really_ended(
    experiment: Path, corpus: Path, tmp_path: Path
) -> None:
    """A rollback led the first stage past 24 rows: what it read instead must not come again."""
    first, second = plan(ElectraTwoStageArm(learning_rate=RATE), corpus, steps=8)
    like, name = run_of(experiment, "bert") / "checkpoints" / "step-00000004", f"step-{first.steps:08d}"
    for rollbacks, skipped in ((0, ()), (1, ((12, 36),))):
        progress = Progress(
            step=first.steps,
            position=12 * first.steps + 24 * rollbacks,
            rollbacks=rollbacks,
            skipped_rows=skipped,
        )
        shutil.rmtree(tmp_path / first.name, ignore_errors=True)
        stored(tmp_path / first.name / "checkpoints" / name, like, first.identity.fingerprint(), progress)
        begun = inherited(second, tmp_path / second.name)
        assert begun.position == second.identity.start_position + 24 * rollbacks == progress.position
        (ledger,) = begun.inherited.values()
        assert (ledger.rollbacks, ledger.rows_skipped) == (rollbacks, 24 * rollbacks)
        assert (begun.rollbacks, begun.skipped_rows) == (0, ())  # its own


def test_bert_goes_on_at_another_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """128 then 512 in the paper, 16 then 32 here: one set of weights, a corpus for each, a schedule for each."""
    corpora = {}
    for seq_len in (16, 32):
        monkeypatch.setattr(synthetic, "SEQ_LEN", seq_len)
        corpora[seq_len] = tmp_path / f"corpus-{seq_len}"
        assert write_corpus(corpora[seq_len], rows=80).seq_len == seq_len
    short = tmp_path / "short"
    (first,) = trained(plan(BertArm(learning_rate=RATE), corpora[16]), corpora[16], short / "runs")
    (spec,) = plan(BertArm(learning_rate=RATE, init_from=[short]), corpora[32])
    assert (spec.identity.seq_len, spec.inherited) == (32, done(first)["flops_counted"])
    assert spec.identity.schedule.warmup_steps == round(0.05 * 4)
    objective = objective_of(spec)
    (told,) = begin(objective, spec, tmp_path)
    assert told["lacked"] == []
    assert_filled(objective.networks()["encoder"], network_at(first, "encoder"))
    (second,) = trained([spec], corpora[32], tmp_path / "long" / "runs")
    counted = spec.inherited + 4 * spec.flops_per_step
    assert done(second)["flops_counted"] == pytest.approx(counted, rel=1e-12)
    assert done(second)["inherited"]["flops_counted"] == spec.inherited
    assert done(second)["step"] == 4


def test_electra_goes_on_from_a_hugging_face_folder(corpus: Path, tmp_path: Path) -> None:
    """Through the loop: the run says that it has a discriminator, and neither a generator's body nor its head."""
    stored = tensors_of(hugging_face(tmp_path / "hf", "ElectraForPreTraining"))
    arm = ELECTRA.model_copy(update={"init_from": [tmp_path / "hf"], "learning_rate": 1e-12})
    (spec,) = plan(arm, corpus, steps=2)
    (run,) = trained([spec], corpus, tmp_path / "runs")
    told = [event for event in events(run) if event["event"] == "weights"]
    assert [(event["network"], event["lacked"]) for event in told] == [
        ("discriminator", []),
        ("generator", ["encoder", "heads.mlm"]),
    ]
    ((given,), nothing) = (event["from"] for event in told)
    assert given["folder"] == str(tmp_path / "hf") and given["identity"].startswith("sha256:")
    assert (given["flops"], nothing) == (None, [])
    assert done(run)["flops_counted"] == pytest.approx(2 * spec.flops_per_step, rel=1e-12)
    assert set(done(run)["inherited"].values()) == {0}
    now = network_at(run, "discriminator", 2)  # two steps at a rate of next to nothing
    for name, tensor in stored.items():
        torch.testing.assert_close(now[name], tensor, rtol=0, atol=1e-8)
