"""The experiment tree, its expansion into runs, and the rules of an experiment's folder."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from data_prep.errors import ConfigError, PreflightError
from data_prep.manifest import Documents, Manifest, SplitStats
from data_prep.rows import SpecialIds
from pipeline.config import load
from pipeline.corpora import MAIN, Reading
from pipeline.experiment import Experiment
from pipeline.folder import check_identity, open_folder
from pipeline.gather import CONFIG_NAME
from training.arms import ElectraArm, FrozenGenerator
from training.sizes import SIZES, ModelConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
QUICKSTART = CONFIGS / "quickstart.yaml"


# What the tests below count with, whatever the shipped file is tuned to.
PINNED = ("budgets=[4e11, 1.2e12]", "training.global_batch=32", "training.micro_batch=16")


def experiment(*overrides: str) -> Experiment:
    return load(QUICKSTART, [*PINNED, *overrides], Experiment)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_configuration_loads(path: Path) -> None:
    assert load(path, model=Experiment).name == path.stem


def test_quickstart_is_what_the_readme_says() -> None:
    quickstart = load(QUICKSTART, model=Experiment)
    assert [arm.label for arm in quickstart.arms] == ["electra", "bert", "roberta"]
    assert len(quickstart.budgets) == 2
    assert (quickstart.training.zero_stage, quickstart.cluster.num_workers) == (1, 2)
    assert (quickstart.corpus.layout, quickstart.corpus.seq_len) == ("segments", 128)
    assert (quickstart.corpus.tokenizer.vocab_size, quickstart.corpus.heldout_fraction) == (8192, 0.10)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("budgets=[2e12, 1e12]", "budgets must rise from the smallest to the largest"),
        ("budgets=[1e12, 1.001e12]", "two budgets have the same three digits, which name a run: 1.00e+12, 1.00e+12"),
        ("budgets=[]", "budgets: list should have at least 1 item"),
        ("budgets.0=0", "budgets.0: input should be greater than 0"),
        ("budgets.1=.inf", "budgets.1: input should be a finite number"),
        ("arms.1={objective: electra, learning_rate: 1}", "two arms are called 'electra'; give each its own name"),
        ("arms=[]", "arms: list should have at least 1 item"),
        ("model.max_positions=64", "corpus.seq_len 128 is longer than model.max_positions 64"),
        ("name=../elsewhere", "name: string should match pattern"),
        ("seed=-1", "seed: input should be greater than or equal to 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment(override)
    assert sentence in str(caught.value)


ELECTRA = "arms.0={objective: electra, learning_rate: 1, %s}"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (ELECTRA % "generator: {widht: 0.5}", "arms.0.generator.widht: unknown key; did you mean 'width'?"),
        (
            ELECTRA % "generator_width: 0.5",
            "arms.0.generator_width: unknown key; did you mean 'arms.0.generator.width'?",
        ),
        (
            ELECTRA % "generator: {kind: unifrom}",
            "arms.0.generator.kind: input should be 'network', 'uniform' or 'frozen', not 'unifrom'; did you mean "
            "'uniform'?",
        ),
        (
            ELECTRA % "generator: {kind: uniform, width: 1}",
            "arms.0.generator.width: unknown key; it belongs to kind: network; known here: ",
        ),
        (
            ELECTRA % "generator: {kind: null}",
            "arms.0.generator.kind: input should be 'network', 'uniform' or 'frozen', not null",
        ),
        (
            "arms=[{objective: electra_two_stage, learning_rate: 1, generator: {width: 1}}]",
            "arms.0.generator: unknown key; it belongs to objective: electra, objective: electra_15, "
            "objective: electra_adversarial, objective: replace_mlm, objective: all_tokens_mlm; known here: ",
        ),
        (ELECTRA % "generator: small", "arms.0.generator: input should be a mapping, not 'small'"),
        (
            ELECTRA % "generator: {tying: all}",
            "arms.0.generator: tying 'all' shares the whole body: set width and depth",
        ),
        ("model={size: smal}", "model.size: no size is called 'smal'; there are tiny, small, base, large"),
        ("model.size=medium", "argument 'model.size=medium': model.size: no size is called 'medium'; there are tiny"),
        ("model.attention=sdpa", "model.attention: unknown key; did you mean 'training.compute.attention'?"),
        ("model={sise: small}", "model.sise: unknown key; did you mean 'size'?"),
        ("training.warmup_fraction=0", "unknown key; did you mean 'training.schedule.warmup_fraction'?"),
        ("steps=100", "set either budgets (a list, in model FLOPs) or steps (one number), and not both"),
        ("budgets=null", "set either budgets (a list, in model FLOPs) or steps (one number), and not both"),
        (
            "arms=[{objective: electra_two_stage, learning_rate: 1, name: x}, "
            "{objective: mlm, learning_rate: 1, name: x-first}]",
            "two arms are called 'x-first'; give each its own name",
        ),
    ],
)
def test_a_mistake_in_an_arm_a_size_or_a_length_is_said_by_its_key(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment(override)
    assert sentence in str(caught.value)


def test_two_arms_of_one_objective_with_names_of_their_own() -> None:
    two = experiment(
        "arms=[{name: a, objective: bert, learning_rate: 1}, {name: b, objective: bert, learning_rate: 2}]"
    )
    assert [arm.label for arm in two.arms] == ["a", "b"]


# --- runs -------------------------------------------------------------------------------------------------------------


def manifest() -> Manifest:
    """1,000 rows of 100 tokens in one fragment each, 900 of them with a pair."""
    histogram = [0] * 129
    histogram[100] = 1000
    train = SplitStats(
        rows=1000, tokens=100_000, fragments=1000, sum_L=100_000, sum_L2=10_000_000, row_lengths=histogram,
        rows_with_pair=900, unk=0, shards=[],
    )  # fmt: skip
    return Manifest(
        config_sha256="c", inputs_sha256="i", seed=0, tokenizer_sha256="t", vocab_size=8192,
        special=SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4), layout="segments", pair_separators=1, seq_len=128,
        dtype="uint16", units=1, heldout_documents=[], train=train, heldout=train, sources=[],
        documents=Documents(documents_in=1, out=1, train=1, heldout=0, text_bytes=1, rejected={}, topics={}),
    )  # fmt: skip


def test_runs_are_arms_by_budgets_by_seeds_smallest_budget_first() -> None:
    runs = experiment("seed=5", "seeds=2").runs({MAIN: Reading(manifest())})
    assert [run.name for run in runs] == [
        f"{arm}-{budget}-s{seed}"
        for budget in ("4.00e+11", "1.20e+12")
        for seed in (5, 6)
        for arm in ("electra", "bert", "roberta")
    ]
    assert [run.identity.seed for run in runs[:4]] == [5, 5, 5, 6]


ONE = ("budgets=null", "arms=[{objective: bert, learning_rate: 1}]")
BRANCHES = "training.schedule={kind: wsd, warmup_fraction: 0.1, decay_fraction: 0.2, branches: true}"


def test_trunks_come_before_their_branches() -> None:
    runs = experiment(BRANCHES, "budgets=[4e11, 8e11, 1.2e12]", "seeds=2").runs({MAIN: Reading(manifest())})
    names = [
        f"{arm}-{budget}-s{seed}"
        for budget in ("1.20e+12", "4.00e+11", "8.00e+11")
        for seed in (0, 1)
        for arm in ("electra", "bert", "roberta")
    ]
    assert [run.name for run in runs] == names
    assert [run.placement.trunk for run in runs] == [None] * 6 + [f"../{trunk}" for trunk in names[:6] * 2]
    for trunk, small, middle in zip(runs[:6], runs[6:12], runs[12:], strict=True):
        assert trunk.placement.save_at == [small.first_step, middle.first_step]
        assert small.first_step == small.steps - round(0.2 * small.steps)
        assert {run.identity.schedule.warmup_steps for run in (trunk, small, middle)} == {round(0.1 * small.steps)}


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((BRANCHES.replace("wsd", "linear"),), "training.schedule: branches need a rate that stays until the decay"),
        ((BRANCHES, *ONE, "steps=50"), "training.schedule.branches is for budgets; give budgets, or set it to false"),
        ((BRANCHES, "arms=[{objective: electra_two_stage, learning_rate: 1}]"), "has two stages"),
        ((BRANCHES, "arms=[{objective: bert, learning_rate: 1, init_from: x}]"), "begins with the weights of others"),
    ],
)
def test_what_has_no_trunk_is_refused(overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment(*overrides)
    assert sentence in str(caught.value)


def test_every_arm_gets_its_budget_within_half_a_step() -> None:
    for run in experiment().runs({MAIN: Reading(manifest())}):
        assert abs(run.steps * run.flops_per_step - run.budget) <= run.flops_per_step / 2


def test_flops_of_the_roberta_arm_by_hand() -> None:
    """E = D = 128, F = 512, 2 layers, V = 8192, rows of 100 tokens: masked k = min(19, round(.15 × 100)) = 15."""
    runs = experiment().runs({MAIN: Reading(manifest())})
    run = next(run for run in runs if run.identity.arm.label == "roberta")
    body = 2 * (2 * 128 * (4 * 128 + 2 * 512) * 100 + 4 * 128 * 100**2)
    head = 15 * 2 * 128 * (128 + 8192)
    assert run.flops_per_step == pytest.approx(3 * 32 * (body + head), rel=1e-12)


def test_steps_in_place_of_budgets_are_one_arms(tmp_path: Path) -> None:
    runs = experiment(*ONE, "steps=50", "seeds=2").runs({MAIN: Reading(manifest())})
    assert [(run.name, run.steps) for run in runs] == [("bert-50steps-s0", 50), ("bert-50steps-s1", 50)]
    for run in runs:
        assert run.budget == pytest.approx(50 * run.flops_per_step, rel=1e-12)
    with open_folder(tmp_path, experiment(*ONE, "steps=50")):
        pass
    check_identity(tmp_path / CONFIG_NAME, experiment(*ONE, "steps=50", "seeds=2"))
    for other in ((*ONE, "steps=60"), ()):
        with pytest.raises(ConfigError, match=r"other values of .*steps"):
            check_identity(tmp_path / CONFIG_NAME, experiment(*other))
    with pytest.raises(ConfigError, match=r"argument 'steps=50': steps: is for one arm; give budgets to compare arms"):
        experiment("budgets=null", "steps=50")


def test_a_size_is_refused_where_a_stored_configuration_leaves_it_nothing_to_say(tmp_path: Path) -> None:
    with open_folder(tmp_path, experiment()):
        pass
    stored = tmp_path / CONFIG_NAME
    with pytest.raises(ConfigError) as caught:
        load(stored, ["model.size=base"], Experiment)
    assert str(caught.value) == (
        "argument 'model.size=base': model.size: every number of size 'base' is set beside it, and embedding_size is "
        "128, not 768; drop size or the numbers"
    )
    assert load(stored, ["model.size=tiny"], Experiment) == experiment()


@pytest.mark.parametrize("size", [{"size": "tiny"}, {"size": "tiny", "num_layers": 3}])
def test_a_size_may_stand_beside_numbers_that_it_is_not_wholly_made_of(size: dict[str, object]) -> None:
    found = ModelConfig(**size)  # type: ignore[arg-type]
    assert (found.hidden_size, found.num_layers) == (128, size.get("num_layers", 2))
    assert ModelConfig(size="tiny", **SIZES["tiny"]) == ModelConfig(size="tiny")  # type: ignore[call-arg]


def test_an_arm_in_two_stages_is_two_runs_the_first_before_the_second() -> None:
    two = "arms=[{objective: bert, learning_rate: 1}, {objective: electra_two_stage, learning_rate: 1, name: two}]"
    runs = experiment(two).runs({MAIN: Reading(manifest())})
    assert [(run.name, run.part_of) for run in runs] == [
        (f"{name}-{budget}-s0", f"two-{budget}-s0" if name == "two-first" else None)
        for budget in ("4.00e+11", "1.20e+12")
        for name in ("bert", "two-first", "two")
    ]
    for first, second in ((runs[1], runs[2]), (runs[4], runs[5])):
        assert abs(first.steps * first.flops_per_step - second.budget / 2) <= first.flops_per_step / 2
        total = first.steps * first.flops_per_step + second.steps * second.flops_per_step
        assert abs(total - second.budget) <= second.flops_per_step / 2


# --- folder -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Path]:
    with open_folder(tmp_path / "out", experiment()) as folder:
        folder.event("train", "done", seconds=1.5)
    yield tmp_path / "out"


def test_stores_the_resolved_configuration_and_events(made: Path) -> None:
    assert load(made / CONFIG_NAME, model=Experiment) == experiment()
    (line,) = [json.loads(text) for text in (made / "events.jsonl").read_text().splitlines()]
    assert (line["stage"], line["event"], line["seconds"]) == ("train", "done", 1.5)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("cluster.num_workers=1", "training.micro_batch=4", "training.log_every=7", "training.zero_stage=2"),
        ("evaluation.seeds=3", "evaluation.protocol.epochs=1"),
        ("budgets=[4e11, 1.2e12, 3e12]", "seeds=2"),
    ],
)
def test_placement_evaluation_and_additions_are_no_other_experiment(made: Path, overrides: tuple[str, ...]) -> None:
    changed = experiment(*overrides)
    with open_folder(made, changed):
        pass
    assert load(made / CONFIG_NAME, model=Experiment) == changed


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (("training.global_batch=64",), "training.global_batch"),
        (("training.optimizer.eps=1e-8", "seed=1"), "seed, training.optimizer.eps"),
        (("arms.0.learning_rate=1",), "arms.electra.learning_rate"),
        (("arms=[{objective: bert, learning_rate: 1e-3}]",), "arms.electra, arms.roberta"),
        (("budgets=[4e11]",), "budgets.1.20e+12"),
        (("corpus.sources.0.max_bytes=5",), "corpus.sources"),
        (("model.num_layers=3", "name=other"), "model.num_layers, name"),
    ],
)
def test_another_experiment_is_refused_with_keys_and_ways_out(
    made: Path, overrides: tuple[str, ...], keys: str
) -> None:
    before = (made / CONFIG_NAME).read_bytes()
    with pytest.raises(ConfigError) as caught, open_folder(made, experiment(*overrides)):
        raise AssertionError
    assert str(caught.value) == (
        f"{made}: holds results made with other values of {keys}; "
        "choose another folder with --out, or remove this one to start again"
    )
    assert (made / CONFIG_NAME).read_bytes() == before


def test_fewer_seeds_are_refused(tmp_path: Path) -> None:
    with open_folder(tmp_path, experiment("seeds=2")):
        pass
    with pytest.raises(ConfigError, match="other values of seeds"):
        check_identity(tmp_path / CONFIG_NAME, experiment())


def test_corpus_files_may_move(tmp_path: Path) -> None:
    source = "corpus.sources=[{kind: jsonl, path: /%s/x.jsonl}]"
    with open_folder(tmp_path, experiment(source % "a")):
        pass
    check_identity(tmp_path / CONFIG_NAME, experiment(source % "b"))


def test_folders_of_first_weights_may_move(tmp_path: Path) -> None:
    """What they hold is in the identity of each run."""
    arm = "arms=[{objective: electra, learning_rate: 1, init_from: [/%s/x], generator: {kind: frozen, init_from: /%s}}]"
    with open_folder(tmp_path, experiment(arm % ("a", "a"))):
        pass
    check_identity(tmp_path / CONFIG_NAME, experiment(arm % ("b", "b")))
    with pytest.raises(ConfigError, match=r"other values of arms\.electra\.generator\.temperature"):
        check_identity(tmp_path / CONFIG_NAME, experiment(arm % ("a", "a"), "arms.0.generator.temperature=2"))


def test_folders_of_first_weights_are_stored_as_seen_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arm = "arms=[{objective: electra, learning_rate: 1, init_from: runs/x, generator: {kind: frozen, init_from: ../y}}]"
    with open_folder(tmp_path / "out", experiment(arm)):
        pass
    (stored,) = load(tmp_path / "out" / CONFIG_NAME, model=Experiment).arms
    assert isinstance(stored, ElectraArm) and isinstance(stored.generator, FrozenGenerator)
    assert stored.init_from == [tmp_path / "runs" / "x"]
    assert stored.generator.init_from == tmp_path / ".." / "y"


def test_unwritable_folders_are_found_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/electra")):
        with pytest.raises(PreflightError) as caught, open_folder(path, experiment()):
            raise AssertionError
        assert caught.value.exit_code == 3
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(PreflightError) as caught, open_folder(tmp_path, experiment()):
        raise AssertionError
    assert f"{tmp_path}/.lock: cannot be locked ({os.strerror(code)})" in str(caught.value)


def test_a_lock_that_is_no_file_is_said(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(PreflightError, match=r"\.lock: cannot be locked \(Is a directory\)"), ExitStack() as stack:
        stack.enter_context(open_folder(tmp_path, experiment()))


def test_one_process_at_a_time_and_no_stale_lock(tmp_path: Path) -> None:
    with (
        open_folder(tmp_path, experiment()),
        pytest.raises(PreflightError, match="another electra process"),
        ExitStack() as stack,
    ):
        stack.enter_context(open_folder(tmp_path, experiment()))
    killed = (
        "import os, sys; from pathlib import Path; from pipeline.config import load\n"
        "from pipeline.experiment import Experiment; from pipeline.folder import open_folder\n"
        f"with open_folder(Path({str(tmp_path)!r}), load({str(QUICKSTART)!r}, {PINNED!r}, Experiment)):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", killed], cwd=QUICKSTART.parents[1], check=False)
    assert done.returncode == -9
    with open_folder(tmp_path, experiment()):
        pass
