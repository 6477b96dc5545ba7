"""What a plan makes of the weights that a run is to begin with."""

import re
import shutil
from pathlib import Path

import pytest

from data_prep import storage
from data_prep.errors import ConfigError
from data_prep.manifest import load
from tests.training.origins import ENCODER, RATE, find, hugging_face, plan, run_of, stored
from tests.training.synthetic import MODEL, VOCAB
from training import checkpoints, origin, run_folder
from training.arms import (
    AllTokensMlmArm,
    ArmConfig,
    BertArm,
    ElectraArm,
    FrozenGenerator,
    MlmArm,
    NetworkGenerator,
    ReplaceMlmArm,
    UniformGenerator,
)
from training.checkpoints import Progress
from training.settings import RunSpec
from training.sizes import ModelConfig


def test_a_plan_names_contents_in_its_identity_and_folders_beside_it(experiment: Path, corpus: Path) -> None:
    source = find(run_of(experiment, "bert"))
    (ledger,) = source.ledgers.values()
    arm = BertArm(learning_rate=RATE, init_from=[experiment])
    (fresh,), (run,) = plan(BertArm(learning_rate=RATE), corpus), plan(arm, corpus)
    assert run.identity.init == {"weights": [source.identity]}
    assert run.placement.init == {"weights": [str(source.folder)]}
    assert run.identity.arm == fresh.identity.arm  # no path in it
    assert (run.inherited, run.inherited_budget) == (ledger.flops_counted, fresh.budget) and run.inherited > 0
    assert run.budget == 2 * fresh.budget
    (matched,) = plan(arm, corpus, budget=run.budget)
    assert (matched.steps, matched.inherited) == (4, run.inherited)
    with pytest.raises(ConfigError, match=r"begins with took .* and nothing is left; raise the budget"):
        plan(arm, corpus, budget=run.inherited)
    with pytest.raises(ConfigError, match="do not pay for one step"):
        plan(arm, corpus, budget=run.inherited + 0.1 * run.flops_per_step)


def test_a_frozen_generator_is_planned_at_the_size_it_has(experiment: Path, corpus: Path) -> None:
    """ELECTRA's generator is what predicts masked tokens; BERT's encoder is."""
    for label, size in (("electra", ENCODER.scaled(0.5, 1.0)), ("bert", ENCODER)):
        source = find(run_of(experiment, label))
        (ledger,) = source.ledgers.values()
        generator = FrozenGenerator(init_from=run_of(experiment, label), temperature=0.8)
        (run,) = plan(ElectraArm(learning_rate=RATE, generator=generator), corpus)
        planned = run.identity.arm.generator  # type: ignore[union-attr]
        assert planned == FrozenGenerator(
            network=ModelConfig(**size.model_dump(exclude={"vocab_size"})), temperature=0.8
        )
        assert run.identity.init == {"generator": [source.identity]}
        assert run.inherited == ledger.flops_counted


def test_what_cannot_be_begun_with_is_refused_when_planned(experiment: Path, corpus: Path, tmp_path: Path) -> None:
    discriminator, other = tmp_path / "discriminator", tmp_path / "other"
    hugging_face(discriminator, "ElectraForPreTraining")
    hugging_face(other, "ElectraForMaskedLM", ENCODER.model_copy(update={"vocab_size": VOCAB + 1}))
    electra = run_of(experiment, "electra")
    deeper = MODEL.model_copy(update={"num_layers": 3})
    many_heads = MODEL.model_copy(update={"num_heads": 4})
    frozen = ElectraArm(learning_rate=RATE, generator=FrozenGenerator(init_from=discriminator))
    narrow = ElectraArm(learning_rate=RATE, init_from=[electra], generator=NetworkGenerator(width=0.25))
    for arm, model, sentence in (
        (MlmArm(learning_rate=RATE, init_from=[other]), MODEL, f"whose vocabulary has {VOCAB + 1} entries; the corpus"),
        (MlmArm(learning_rate=RATE, init_from=[electra]), deeper, "whose num_layers is 2, and its own is 3; set model"),
        (MlmArm(learning_rate=RATE, init_from=[electra]), many_heads, "whose num_heads is 2, and its own is 4"),
        (narrow, MODEL, "whose generator's hidden_size is 16, and its own is 8; set generator.width"),
        (frozen, MODEL, "which holds no network that predicts masked tokens"),
    ):
        with pytest.raises(ConfigError) as caught:
            plan(arm, corpus, model)
        assert sentence in str(caught.value)
    manifest = load(corpus).model_copy(update={"tokenizer_sha256": "another"})
    with pytest.raises(ConfigError, match="was trained with another tokenizer"):
        plan(MlmArm(learning_rate=RATE, init_from=[electra]), corpus, manifest=manifest, corpus_dir=None)


def test_seeds_of_as_many_steps_have_one_budget_whatever_their_sources_cost(
    experiment: Path, corpus: Path, tmp_path: Path
) -> None:
    """Each seed goes on from a run of its own, whose rows cost something of their own, as its rows do."""
    like = run_of(experiment, "bert") / "checkpoints" / "step-00000004"
    for seed, flops in ((0, 1e8), (1, 1.01e8)):
        run = tmp_path / "runs" / f"bert-s{seed}"
        stored(run / "checkpoints" / "step-00000004", like, f"run{seed}", Progress(step=4, flops_counted=flops))
        storage.write_json(run / "run.json", {"arm": "bert", "objective": "bert", "seed": seed})
        storage.write_json(run / "done.json", {"checkpoint": "step-00000004"})
    arm = BertArm(learning_rate=RATE, init_from=[tmp_path])
    (one,), (two,) = (plan(arm, corpus, seed=seed) for seed in (0, 1))
    assert (one.name, two.name) == ("bert-4steps-s0", "bert-4steps-s1")
    assert (one.inherited, two.inherited) == (1e8, 1.01e8)
    assert one.flops_per_step != two.flops_per_step
    assert one.budget == two.budget
    with pytest.raises(ConfigError, match="holds no run with seed 2"):
        plan(arm, corpus, seed=2)


@pytest.mark.parametrize("length", [{"steps": 4}, {"budget": 1e9}], ids=["steps", "budget"])
def test_a_run_that_has_begun_is_planned_the_same_without_its_source(
    length: dict[str, float], experiment: Path, corpus: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(run_of(experiment, "bert"), tmp_path / "source")
    generator = FrozenGenerator(init_from=source)
    arm = ElectraArm(learning_rate=RATE, init_from=[source], generator=generator)

    def planned(arm: ArmConfig = arm) -> RunSpec:
        (found,) = plan(arm, corpus, runs_dir=tmp_path / "runs", **length)
        return found

    run = planned()
    run_dir = tmp_path / "runs" / run.name
    run_dir.mkdir(parents=True)
    run_folder.write_run_record(run_dir, run)
    assert planned() == run and run.inherited > 0

    moved = source.rename(tmp_path / "moved")
    assert planned() == run
    with pytest.raises(ConfigError, match=r"init_from: .*/source is no folder"):
        planned(arm.model_copy(update={"init_from": [source, source]}))  # the record does not speak of a second one
    with pytest.raises(ConfigError, match=r"init_from: .*/source is no folder"):
        plan(arm, corpus, **length)  # no record
    faster = planned(arm.model_copy(update={"learning_rate": 1.0}))
    assert faster.identity.arm.learning_rate == 1.0  # the rest is today's configuration's

    shutil.copytree(moved / "checkpoints" / "step-00000002", source)  # something else is there now
    assert planned().identity.init["weights"] != run.identity.init["weights"]
    assert planned().name == run.name  # not a second run beside it
    with pytest.raises(ConfigError, match=r"began with .*@4, and init_from now names .*@2; restore"):
        run_folder.refuse_changes(run_dir, run.identity.model_dump(mode="json"), planned())


def test_a_folder_with_another_vocabulary_is_refused(corpus: Path, tmp_path: Path) -> None:
    """As many entries, and the words of others: nothing else would tell."""
    hf = tmp_path / "hf"
    hugging_face(hf, "ElectraForMaskedLM")
    arm = MlmArm(learning_rate=RATE, init_from=[hf])
    words = (corpus / "vocab.txt").read_text().splitlines()
    (hf / "vocab.txt").write_text("\n".join(words) + "\n")
    assert plan(arm, corpus)[0].identity.init["weights"][0].startswith("sha256:")
    first, second = words[20:22]
    (hf / "vocab.txt").write_text("\n".join([*words[:20], second, first, *words[22:]]) + "\n")
    sentence = f"whose vocabulary is another: '{first}' is 21 there, and 20 in the corpus; prepare the corpus with that"
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        plan(arm, corpus)
    (hf / "vocab.txt").unlink()
    shutil.copy(corpus / "tokenizer" / "tokenizer.json", hf)
    plan(arm, corpus)
    changed = (hf / "tokenizer.json").read_text().replace(f'"{first}"', '"elsewhere"')
    (hf / "tokenizer.json").write_text(changed)
    with pytest.raises(ConfigError, match=f"'{first}' is no token there, and 20 in the corpus"):
        plan(arm, corpus)


def test_a_folder_with_another_padding_is_refused(corpus: Path, tmp_path: Path) -> None:
    hugging_face(tmp_path / "hf", "ElectraForMaskedLM")
    config = tmp_path / "hf" / "config.json"
    storage.write_json(config, {**storage.read_json(config), "pad_token_id": 1})
    with pytest.raises(ConfigError, match=r"config\.json says pad_token_id 1; the corpus's is 0"):
        plan(MlmArm(learning_rate=RATE, init_from=[tmp_path / "hf"]), corpus)


def test_what_has_never_seen_a_mask_is_no_generator(experiment: Path, tmp_path: Path) -> None:
    """The main network of replace_mlm and all_tokens_mlm has a masked-token head and only saw samples: beside chance
    there is nothing to freeze, beside a generator that is it."""
    like = next(run_of(experiment, "bert").glob("checkpoints/step-*"))
    identity = storage.read_json(like / checkpoints.MANIFEST)["spec"]["identity"]
    for number, (generator, masked) in enumerate(
        ((UniformGenerator(), None), (NetworkGenerator(width=0.5), ENCODER.scaled(0.5, 1.0)))
    ):
        for kind in (ReplaceMlmArm, AllTokensMlmArm):
            arm = kind(learning_rate=RATE, generator=generator).model_dump(mode="json")
            folder = tmp_path / f"{kind.__name__}-{number}"
            found = origin.at(stored(folder, like, "r", Progress(step=4), identity={**identity, "arm": arm}))
            assert (found.main, found.masked) == (ENCODER, masked)
