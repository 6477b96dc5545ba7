"""The stages of preparing a corpus as units of work: their payloads, identities, records and progress.

A unit's identity is a hash of all that its output depends on: the slice, the settings that matter to the stage, the
results of the stages before. So whatever changes, exactly the units it touches are redone. Knows Ray only through
`cluster.tasks`, and what a stage does only by name.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.session import session
from cluster.tasks import Unit, committed, run_units
from data_prep import accounts
from data_prep.corpus import CorpusConfig
from data_prep.errors import DataError
from data_prep.plan import Plan, PlannedUnit
from data_prep.settings import fingerprint
from data_prep.storage import Folder
from pipeline.pace import Pace

if TYPE_CHECKING:
    from pipeline.prepare import ConsoleLike, OnEvent

Result = dict[str, Any]


class Stages:
    """The stages of one corpus, each a set of units."""

    def __init__(
        self,
        config: CorpusConfig,
        corpus: Folder,
        plan: Plan,
        console: "ConsoleLike | None",
        on_event: "OnEvent | None",
        start_ray: Callable[[], None] | None,
        stack: ExitStack,
    ) -> None:
        self.config, self.corpus, self.plan = config, corpus, plan
        self.console, self.on_event = console, on_event
        self._start_ray, self._stack = start_ray, stack

    def documents(self) -> list[Result]:
        """Read and clean every unit of the plan."""
        from data_prep.units import documents_unit

        units = [
            self.unit(
                f"documents {unit.unit:05d}",
                self._documents_task(unit),
                f"documents/{unit.unit:05d}.json",
                self.plan.unit_identity(unit),
            )
            for unit in self.plan.units
        ]
        watch = accounts.BadWatch(self.config, self.plan)
        planned = dict(zip((unit.name for unit in units), self.plan.units, strict=True))
        results = self.run(
            "documents",
            documents_unit,
            units,
            [unit.bytes for unit in self.plan.units],
            lambda unit, result: watch.add(planned[unit.name], result),
        )
        accounts.check_bad(self.config, self.plan, results)
        if not any(result["documents"] for result in results):
            raise DataError(accounts.nothing_left(results))
        return results

    def removals(self, documents: Sequence[Result]) -> str:
        """Merge what is removed, and why, into the removal list; returns a hash of it and of all passages to cut."""
        from data_prep.removals import find_removals
        from pipeline.removal_stages import contaminated, near_duplicates

        passages = contaminated(self, documents) if self.config.decontamination is not None else None
        if self.config.near_duplicates is not None:
            near_duplicates(self, documents)
        sha256, counts = find_removals(self.corpus, self.plan, self.config)
        kept = sum(result["documents"] for result in documents)
        if sum(counts.values()) == kept:
            raise DataError(
                f"No document is left: all {kept} were removed ({accounts.listed(counts)}); change the setting of the "
                "commonest reason."
            )
        self.say(f"prepare: {accounts.listed(counts) or 'nothing'} removed of {kept} documents")
        return fingerprint([sha256, passages])

    def tokenizer(self, documents: Sequence[Result], removals: str) -> Result:
        """Train or copy the tokenizer, and find out whether a fast engine gives its ids."""
        from data_prep.units import TokenizerTask, tokenizer_unit

        path = self.config.tokenizer.path
        identity = {
            "recipe": self.plan.recipe,
            "tokenizer": self.plan.config["tokenizer"],
            "file": self.plan.tokenizer_sha256,
            "heldout_fraction": self.config.heldout_fraction,
            "documents": [result["sha256"] for result in documents] if path is None else None,
            "removals": removals if path is None else None,
        }
        if path is not None:  # a worker's working directory is another one
            path = str(Path(path).expanduser().absolute())
        settings = self.config.tokenizer.model_copy(update={"path": path})
        config = self.config.model_copy(update={"tokenizer": settings})
        task = TokenizerTask(corpus=self.corpus.location, config=config, units=len(self.plan.units))
        (made,) = self.run(
            "tokenizer", tokenizer_unit, [self.unit("tokenizer", task, "parts/tokenizer.json", identity)]
        )
        return made

    def rows(self, documents: Sequence[Result], removals: str, made: Result) -> list[Result]:
        """Tokenize and pack every unit into shards."""
        from data_prep.row_units import RowsTask, rows_unit

        shared = {
            "recipe": self.plan.recipe,
            "removals": removals,
            "tokenizer": made["sha256"],
            "seed": self.plan.seed,
            "tokenizers": metadata.version("tokenizers"),  # another release may give other ids
            **{
                key: self.plan.config[key]
                for key in ("layout", "discard_overflow", "seq_len", "heldout_fraction", "rows_per_shard")
            },
        }
        verdict = self.engine(documents, made)
        units = [
            self.unit(
                f"rows {number:05d}",
                RowsTask(
                    corpus=self.corpus.location,
                    config=self.config,
                    unit=number,
                    seed=self.plan.seed,
                    tokenizer_sha256=made["sha256"],
                    verdict=verdict,
                ),
                f"parts/{number:05d}.json",
                {**shared, "unit": number, "documents": result["sha256"]},
            )
            for number, result in enumerate(documents)
        ]
        return self.run("rows", rows_unit, units, [result["text_bytes"] for result in documents])

    def engine(self, documents: Sequence[Result], made: Result) -> Result:
        """The verdict on the fast engine for this tokenizer, made anew for every version of it."""
        from data_prep import engines
        from data_prep.row_units import EngineTask, engine_unit

        task = EngineTask(corpus=self.corpus.location, units=len(self.plan.units), tokenizer_sha256=made["sha256"])
        identity = {
            "tokenizer": made["sha256"],
            "engines": engines.installed(),
            "tokenizers": metadata.version("tokenizers"),
            "documents": [result["sha256"] for result in documents],
        }
        (verdict,) = self.run("engine", engine_unit, [self.unit("engine", task, "parts/engine.json", identity)])
        if not verdict["accepted"]:
            self.warn(f"tokenizing with the slower reference: {verdict['reason']}")
        return verdict

    def unit(self, name: str, payload: Any, record: str, identity: Any) -> Unit:
        """A unit whose record lies in the corpus."""
        return Unit(name=name, payload=payload, folder=self.corpus, record=record, identity=fingerprint(identity))

    def run(
        self,
        stage: str,
        work: Callable[[Any], Result],
        units: Sequence[Unit],
        sizes: Sequence[int] | None = None,
        on_result: Callable[[Unit, Result], None] | None = None,
    ) -> list[Result]:
        """Run what is not done of a stage, showing its pace; `sizes` are the units' bytes, where they tell the work.
        An error that `on_result` raises for a unit that was done ends the stage."""
        kept = {unit.name for unit in units if self._done(unit)}
        if len(kept) < len(units):
            self._ensure_ray()
        size_of = {unit.name: size for unit, size in zip(units, sizes or [0] * len(units), strict=True)}

        def intact(unit: Unit, result: Result) -> bool:
            return unit.name in kept

        total, name = (sum(sizes) / 1e6, "MB") if sizes is not None else (len(units), "units")
        pace = Pace(_slots())
        totals: Counter[str] = Counter()
        with self._shown(f"prepare {stage}", total, name) as progress:

            def on_record(unit: Unit, result: Result, reused: bool) -> None:
                totals.update(_figures(result))
                if not reused:
                    pace.add(size_of[unit.name], _tokens(result), result.get("cpu_seconds", 0.0))
                done = size_of[unit.name] / 1e6 if sizes is not None else 1
                if progress is not None:
                    progress.advance(done, **totals, **pace.figures())
                if on_result is not None:
                    on_result(unit, result)

            results = run_units(work, units, intact=intact, on_record=on_record)
        if self.on_event is not None:
            self.on_event(stage, units=len(units), reused=len(kept), **totals, **pace.figures())
        return results

    def _shown(self, name: str, total: float, unit: str) -> AbstractContextManager[Any]:
        return nullcontext() if self.console is None else self.console.stage(name, total=total, unit=unit)

    def say(self, text: str) -> None:
        if self.console is not None:
            self.console.say(text)

    def warn(self, text: str) -> None:
        if self.console is not None:
            self.console.warn(text)

    def _documents_task(self, unit: PlannedUnit) -> Any:
        from data_prep.units import DocumentsTask

        return DocumentsTask(corpus=self.corpus.location, config=self.config, unit=unit, files=self.plan.inputs(unit))

    def _ensure_ray(self) -> None:
        """Start Ray; a session inside a session is the same one, so this may repeat."""
        if self._start_ray is not None:
            self._start_ray()
        else:
            self._stack.enter_context(session())

    def _done(self, unit: Unit) -> bool:
        """Whether the unit is committed and the files its record speaks of are there as it left them."""
        result = committed(unit)
        if result is None:
            return False
        return all(self.corpus.holds(listed) for listed in result.get("files", []))


def _slots() -> float:
    import ray

    return float(ray.cluster_resources().get("CPU", 1.0)) if ray.is_initialized() else 1.0


def _tokens(result: Result) -> int:
    return sum(result[split]["tokens"] for split in ("train", "heldout")) if "train" in result else 0


def _figures(result: Result) -> dict[str, int]:
    """What is worth watching in a unit's result; summed over the units."""
    if "train" in result:
        return {"rows": result["train"]["rows"] + result["heldout"]["rows"]}
    if "documents_in" in result:
        return {"documents": result["documents"], "rejected": sum(result["rejected"].values())}
    if "vocab_size" in result:
        return {"vocabulary": result["vocab_size"]}
    return {name: result[name] for name in ("pairs", "contaminated") if name in result}
