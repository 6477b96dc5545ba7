"""From files to a prepared corpus: the stages of data preparation as Ray tasks, resumable at any moment.

Every stage is a set of units with commit records, so the same command after any interruption continues, and the result
is the same bytes whatever happened on the way and however many workers there were. What exists is trusted only once its
SHA-256 was compared, and a unit with a damaged file is redone. A finished corpus is recognised without starting Ray. On
a cluster, sources and corpus folder lie where every node sees them. Holds no data logic of its own: that is
`data_prep.units`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol

from cluster.session import session
from cluster.tasks import Unit, run_units
from data_prep import integrity, storage
from data_prep import manifest as manifests
from data_prep.corpus import CorpusConfig
from data_prep.errors import DataError
from data_prep.manifest import Manifest
from data_prep.plan import Plan, PlannedUnit, obtain_plan
from data_prep.settings import fingerprint


class ConsoleLike(Protocol):
    """Where progress goes; `pipeline.console.Console` is one."""

    def stage(self, name: str, total: float | None = None, unit: str = "") -> AbstractContextManager[Any]: ...

    def say(self, text: str) -> None: ...


def prepare(
    config: CorpusConfig,
    corpus_dir: Path,
    seed: int,
    *,
    console: ConsoleLike | None = None,
    start_ray: Callable[[], None] | None = None,
) -> Manifest:
    """Prepare the corpus `config` describes in `corpus_dir`, or finish or confirm the one that is there.

    `start_ray` is called before the first task when something is left to run; without it an embedded Ray serves this
    call. Raises PreflightError for a folder that cannot be written, ConfigError when settings or inputs are not those
    the folder was begun with, DataError for missing or empty input.
    """
    corpus_dir = storage.make_folder(Path(corpus_dir)).absolute()
    plan = obtain_plan(config, seed, corpus_dir)
    finished = _finished(corpus_dir, plan, console)
    if finished is not None:
        if console is not None:
            console.say(f"prepare: the corpus in {corpus_dir} is complete: {_summary(finished)}")
        return finished
    with ExitStack() as stack:
        work = _Work(config, corpus_dir, plan, console, start_ray, stack)
        documents = work.documents()
        removals = work.removals(documents)
        made = work.tokenizer(documents, removals)
        rows = work.rows(documents, removals, made)
    manifest = manifests.merge(
        documents,
        rows,
        made,
        config_sha256=fingerprint(plan.config),
        inputs_sha256=plan.inputs_sha256(),
        seed=seed,
        layout=config.layout,
        seq_len=config.seq_len,
    )
    _publish(manifest, corpus_dir)
    if console is not None:
        console.say(f"prepare: {_summary(manifest)}")
    return manifest


class _Work:
    """The stages of one corpus, each a set of units."""

    def __init__(
        self,
        config: CorpusConfig,
        corpus_dir: Path,
        plan: Plan,
        console: ConsoleLike | None,
        start_ray: Callable[[], None] | None,
        stack: ExitStack,
    ) -> None:
        self.config, self.corpus_dir, self.plan, self.console = config, corpus_dir, plan, console
        self._start_ray, self._stack = start_ray, stack

    def documents(self) -> list[dict[str, Any]]:
        """Read and clean every unit of the plan."""
        from data_prep.units import documents_unit

        units = [
            Unit(
                name=f"documents {unit.unit:05d}",
                payload=self._documents_task(unit),
                record=self.corpus_dir / "documents" / f"{unit.unit:05d}.json",
                identity=fingerprint(self.plan.unit_identity(unit)),
            )
            for unit in self.plan.units
        ]
        results = self._run("documents", documents_unit, units)
        if not any(result["documents"] for result in results):
            raise DataError(_nothing_left(results))
        return results

    def removals(self, documents: Sequence[dict[str, Any]]) -> str:
        """Merge the hashes of all units into the removal list; returns its sha256."""
        from data_prep.units import find_removals

        sha256, counts = find_removals(self.corpus_dir, self.plan, self.config)
        kept = sum(result["documents"] for result in documents)
        if sum(counts.values()) == kept:
            raise DataError(
                f"No document is left: all {kept} were removed ({_counts(counts)}); raise corpus.sources max_bytes."
            )
        if self.console is not None:
            self.console.say(f"prepare: {_counts(counts) or 'nothing'} removed of {kept} documents")
        return sha256

    def tokenizer(self, documents: Sequence[dict[str, Any]], removals: str) -> dict[str, Any]:
        """Train or copy the tokenizer."""
        from data_prep.units import TokenizerTask, tokenizer_unit

        identity = {
            "recipe": self.plan.recipe,
            "tokenizer": self.plan.config["tokenizer"],
            "file": self.plan.tokenizer_sha256,
            "heldout_fraction": self.config.heldout_fraction,
            "documents": [result["sha256"] for result in documents] if self.config.tokenizer.path is None else None,
            "removals": removals if self.config.tokenizer.path is None else None,
        }
        path = self.config.tokenizer.path
        if path is not None:  # a worker's working directory is another one
            path = str(Path(path).expanduser().absolute())
        settings = self.config.tokenizer.model_copy(update={"path": path})
        config = self.config.model_copy(update={"tokenizer": settings})
        unit = Unit(
            name="tokenizer",
            payload=TokenizerTask(corpus_dir=self.corpus_dir, config=config, units=len(self.plan.units)),
            record=self.corpus_dir / "parts" / "tokenizer.json",
            identity=fingerprint(identity),
        )
        return self._run("tokenizer", tokenizer_unit, [unit])[0]

    def rows(self, documents: Sequence[dict[str, Any]], removals: str, made: dict[str, Any]) -> list[dict[str, Any]]:
        """Tokenize and pack every unit into shards."""
        from data_prep.units import RowsTask, rows_unit

        shared = {
            "recipe": self.plan.recipe,
            "removals": removals,
            "tokenizer": made["sha256"],
            "seed": self.plan.seed,
            **{key: self.plan.config[key] for key in ("layout", "seq_len", "heldout_fraction", "rows_per_shard")},
        }
        units = [
            Unit(
                name=f"rows {number:05d}",
                payload=RowsTask(corpus_dir=self.corpus_dir, config=self.config, unit=number, seed=self.plan.seed),
                record=self.corpus_dir / "parts" / f"{number:05d}.json",
                identity=fingerprint({**shared, "unit": number, "documents": result["sha256"]}),
            )
            for number, result in enumerate(documents)
        ]
        return self._run("rows", rows_unit, units)

    def _documents_task(self, unit: PlannedUnit) -> Any:
        from data_prep.units import DocumentsTask

        files = [(file.name, file.path, file.package) for file in self.plan.files[unit.first : unit.last]]
        return DocumentsTask(corpus_dir=self.corpus_dir, config=self.config, unit=unit, files=files)

    def _run(self, stage: str, work: Callable[[Any], dict[str, Any]], units: list[Unit]) -> list[dict[str, Any]]:
        kept = {unit.name for unit in units if self._done(unit)}
        if len(kept) < len(units):
            self._ensure_ray()

        def intact(unit: Unit, result: dict[str, Any]) -> bool:
            return unit.name in kept

        if self.console is None:
            return run_units(work, units, intact=intact)
        with self.console.stage(f"prepare {stage}", total=len(units), unit="units") as progress:
            totals: Counter[str] = Counter()

            def on_record(unit: Unit, result: dict[str, Any], reused: bool) -> None:
                totals.update(_figures(result))
                progress.advance(1, **totals)

            return run_units(work, units, intact=intact, on_record=on_record)

    def _ensure_ray(self) -> None:
        """Start Ray; a session inside a session is the same one, so this may repeat."""
        if self._start_ray is not None:
            self._start_ray()
        else:
            self._stack.enter_context(session())

    def _done(self, unit: Unit) -> bool:
        """Whether the unit is committed and the files its record speaks of are there as it left them."""
        from cluster.tasks import committed

        result = committed(unit)
        if result is None:
            return False
        files = [(self.corpus_dir / name, size, sha256) for name, size, sha256 in result["files"]]
        return all(
            path.is_file() and path.stat().st_size == size and storage.sha256_of(path) == sha256
            for path, size, sha256 in files
        )


def _publish(manifest: Manifest, corpus_dir: Path) -> None:
    """Clear what interrupted or older attempts left, then write the manifest: from then on the corpus exists."""
    storage.remove_temporaries(corpus_dir)
    listed = {shard.name for split in (manifest.train, manifest.heldout) for shard in split.shards}
    for split in ("train", "heldout"):
        for path in (corpus_dir / split).glob("*.tar"):
            if f"{split}/{path.name}" not in listed:
                path.unlink()
    manifests.save(manifest, corpus_dir)


def _finished(corpus_dir: Path, plan: Plan, console: ConsoleLike | None) -> Manifest | None:
    """The manifest when it is of this plan and everything it lists is as it says; None when work is left."""
    if not (corpus_dir / manifests.FILE_NAME).exists():
        return None
    try:
        manifest = manifests.load(corpus_dir)
    except DataError:  # torn or foreign: it is made again from the records
        return None
    made_of = (manifest.config_sha256, manifest.inputs_sha256, manifest.seed)
    if made_of != (fingerprint(plan.config), plan.inputs_sha256(), plan.seed):
        return None
    damage = integrity.problems(corpus_dir, manifest)
    if damage and console is not None:
        console.say(f"prepare: restoring the corpus in {corpus_dir}: {'; '.join(damage)}")
    return None if damage else manifest


def _nothing_left(results: Sequence[dict[str, Any]]) -> str:
    seen = sum(result["documents_in"] for result in results)
    if seen == 0:
        return "The corpus is empty: no record was found in any of corpus.sources; check their paths."
    rejected: Counter[str] = Counter()
    for result in results:
        rejected.update(result["rejected"])
    return (
        f"The corpus is empty: all {seen} documents were rejected ({_counts(rejected)}); "
        "check corpus.sources and corpus.cleaning."
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))


def _figures(result: dict[str, Any]) -> dict[str, int]:
    """What is worth watching in a unit's result; summed over the units."""
    if "train" in result:
        return {"rows": result["train"]["rows"] + result["heldout"]["rows"]}
    if "documents_in" in result:
        return {"documents": result["documents"], "rejected": sum(result["rejected"].values())}
    return {"vocabulary": result["vocab_size"]}


def _summary(manifest: Manifest) -> str:
    train, heldout, documents = manifest.train, manifest.heldout, manifest.documents
    share = 100 * train.tokens / (train.rows * manifest.seq_len)
    return (
        f"{documents.out:,} documents ({documents.text_bytes / 1e6:.1f} MB) of {documents.documents_in:,}; "
        f"{train.rows:,} training rows of {manifest.seq_len} in {len(train.shards)} shards, {train.tokens:,} tokens "
        f"({share:.0f} % of the places), {heldout.rows:,} held-out rows; vocabulary {manifest.vocab_size:,}"
    )
