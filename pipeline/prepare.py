"""From files to a prepared corpus: the stages of data preparation as Ray tasks, resumable at any moment.

Every stage is a set of units with commit records, so the same command after any interruption continues, and the result
is the same bytes whatever happened on the way and however many workers there were. What exists on a disk is trusted
only once its hash was compared (in an object store, which keeps its own, its size), and a unit with a damaged file
is redone. A finished corpus is recognised without starting Ray. On a cluster, sources and corpus folder lie where every
node sees them. Holds no data logic of its own: that is `data_prep`; how stages run is `pipeline.prepare_stages`.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

from data_prep import accounts, estimate, integrity, storage
from data_prep import manifest as manifests
from data_prep.corpus import CorpusConfig
from data_prep.errors import ConfigError, DataError
from data_prep.manifest import Manifest
from data_prep.plan import FILE_NAME as PLAN
from data_prep.plan import Plan, obtain_plan
from data_prep.settings import fingerprint
from data_prep.storage import Folder, Location


class ConsoleLike(Protocol):
    """Where progress goes; `pipeline.console.Console` is one."""

    def stage(self, name: str, total: float | None = None, unit: str = "") -> AbstractContextManager[Any]: ...

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None: ...


_SHARD = re.compile(r"(train|heldout)/\d{5,}-\d{3,}\.tar")
OnEvent = Callable[..., None]  # (event, **details)


def prepare(
    config: CorpusConfig,
    location: Location,
    seed: int,
    *,
    console: ConsoleLike | None = None,
    on_event: OnEvent | None = None,
    start_ray: Callable[[], None] | None = None,
) -> Manifest:
    """Prepare the corpus `config` describes at `location`, or finish or confirm the one that is there.

    `start_ray` is called before the first task when something is left to run; without it an embedded Ray serves this
    call. `on_event` gets what the console shows as plain figures. Raises PreflightError for a folder that cannot be
    written or has no room, ConfigError when settings or inputs are not those the folder was begun with, DataError for
    missing, empty or malformed input.
    """
    corpus = storage.folder(location)
    corpus.prepare()
    with ExitStack() as stack:
        stack.enter_context(corpus.held())
        _check_own(corpus)
        plan = obtain_plan(config, seed, corpus)
        finished = _finished(corpus, config, plan, console)
        if finished is not None:
            if console is not None:
                console.say(f"prepare: the corpus in {corpus} is complete: {_summary(finished)}")
            return finished
        estimate.check_space(config, plan, corpus)
        from pipeline.prepare_stages import Stages

        stages = Stages(config, corpus, plan, console, on_event, start_ray, stack)
        documents = stages.documents()
        removals = stages.removals(documents)
        made = stages.tokenizer(documents, removals)
        rows = stages.rows(documents, removals, made)
        manifest = _merged(config, plan, documents, rows, made)
        _publish(manifest, corpus)
    _conclude(config, plan, documents, rows, manifest, console, on_event)
    return manifest


def _check_own(corpus: Folder) -> None:
    """ConfigError for a folder that holds other things than a corpus: some of them would be taken for ours."""
    if corpus.size(PLAN) is not None:
        return
    foreign = [name for name in corpus.names() if name != storage.LOCK and not storage.is_temporary(name)]
    if foreign:
        raise ConfigError(
            f"{corpus} holds {foreign[0]} and is no corpus that was begun here; choose an empty folder for it, or none."
        )


def _merged(
    config: CorpusConfig,
    plan: Plan,
    documents: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    made: dict[str, Any],
) -> Manifest:
    return manifests.merge(
        documents,
        rows,
        made,
        config_sha256=fingerprint(plan.config),
        inputs_sha256=plan.inputs_sha256(),
        seed=plan.seed,
        layout=config.layout,
        seq_len=config.seq_len,
        sources=_sources(config, plan),
    )


def _sources(config: CorpusConfig, plan: Plan) -> list[tuple[str, int | None, int]]:
    """(kind, weight, units) of every source."""
    return [
        (source.kind, source.weight, sum(unit.source == number for unit in plan.units))
        for number, source in enumerate(config.sources)
    ]


def _publish(manifest: Manifest, corpus: Folder) -> None:
    """Clear what interrupted or older attempts left, then write the manifest: from then on the corpus exists."""
    corpus.remove_temporaries()
    listed = {shard.name for split in (manifest.train, manifest.heldout) for shard in split.shards}
    for split in ("train", "heldout"):
        for name in corpus.names(split):
            if _SHARD.fullmatch(name) and name not in listed:
                corpus.delete(name)
    manifests.save(manifest, corpus)


def _finished(corpus: Folder, config: CorpusConfig, plan: Plan, console: ConsoleLike | None) -> Manifest | None:
    """The manifest when it is of this plan and everything it lists is as it says; None when work is left."""
    try:
        manifest = manifests.load(corpus)
    except DataError:  # none, torn or foreign: it is made again from the records
        return None
    made_of = (manifest.config_sha256, manifest.inputs_sha256, manifest.seed)
    if made_of != (fingerprint(plan.config), plan.inputs_sha256(), plan.seed):
        return None
    if [(source.kind, source.weight, source.units) for source in manifest.sources] != _sources(config, plan):
        return None  # other weights: the same shards under another manifest
    damage = integrity.problems(corpus, manifest, deep=corpus.is_local)
    if damage and console is not None:
        console.say(f"prepare: restoring the corpus in {corpus}: {'; '.join(damage)}")
    return None if damage else manifest


def _conclude(
    config: CorpusConfig,
    plan: Plan,
    documents: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    manifest: Manifest,
    console: ConsoleLike | None,
    on_event: OnEvent | None,
) -> None:
    """Say what was made and what should worry somebody."""
    alarms = accounts.alarms(config, plan, documents, rows, manifest)
    table = accounts.statistics(manifest, rows)
    if on_event is not None:
        on_event("stats", alarms=alarms, **{name.strip(): value for name, value in table})
    if console is None:
        return
    console.table("Corpus", ["", "value"], table)
    for alarm in alarms:
        console.warn(alarm)
    console.say(f"prepare: {_summary(manifest)}")


def _summary(manifest: Manifest) -> str:
    train, heldout, documents = manifest.train, manifest.heldout, manifest.documents
    share = 100 * train.tokens / (train.rows * manifest.seq_len)
    return (
        f"{documents.out:,} documents ({documents.text_bytes / 1e6:.1f} MB) of {documents.documents_in:,}; "
        f"{train.rows:,} training rows of {manifest.seq_len} in {len(train.shards)} shards, {train.tokens:,} tokens "
        f"({share:.0f} % of the places), {heldout.rows:,} held-out rows; vocabulary {manifest.vocab_size:,}"
    )
