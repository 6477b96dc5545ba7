"""The stages that look for near duplicates and for text of evaluation sets, between documents and the removal list.

Each returns what it found as (unit, row) → reason; identities chain from stage to stage through the hashes of what the
stages before wrote, so a change anywhere redoes what depends on it and nothing else. What the stages do is
`data_prep.neardup`, `data_prep.nearcheck` and `data_prep.decontaminate`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep import tables
from data_prep.settings import fingerprint
from data_prep.units import exact_duplicates

if TYPE_CHECKING:
    from pipeline.prepare_stages import Result, Stages

Removed = dict[tuple[int, int], str]


def near_duplicates(stages: "Stages", documents: Sequence["Result"]) -> Removed:
    """The documents to remove because an earlier one is nearly the same."""
    from data_prep import nearcheck, neardup

    config, units = stages.config.near_duplicates, len(stages.plan.units)
    assert config is not None
    excluded = _exclude(stages, "exact", _exact(stages))
    parts = neardup.pair_parts(sum(result["documents"] for result in documents), config)
    shared = {"settings": stages.plan.config["near_duplicates"], "recipe": stages.plan.recipe, "excluded": excluded[1]}

    def per_unit(stage: str, work: Any, before: Any) -> list["Result"]:
        return stages.run(
            f"near duplicates, {stage}",
            work,
            [
                stages.unit(
                    f"{stage} {unit:05d}",
                    neardup.NearTask(
                        corpus=stages.corpus.location,
                        config=config,
                        unit=unit,
                        units=units,
                        parts=parts,
                        excluded=excluded[0],
                    ),
                    f"{neardup.NEAR}/{stage}/{unit:05d}.json",
                    {**shared, "unit": unit, "documents": documents[unit]["sha256"], "before": before},
                )
                for unit in range(units)
            ],
            [result["text_bytes"] for result in documents],
        )

    signatures = per_unit("signatures", neardup.signatures_unit, None)
    pairs = stages.run(
        "near duplicates, pairs",
        neardup.pairs_unit,
        [
            stages.unit(
                f"pairs {part:05d}",
                neardup.PairsTask(corpus=stages.corpus.location, part=part, parts=parts, units=units),
                f"{neardup.NEAR}/pairs/{part:05d}.json",
                {**shared, "part": part, "parts": parts, "before": _hashes(signatures)},
            )
            for part in range(parts)
        ],
    )
    sets = per_unit("sets", nearcheck.sets_unit, _hashes(pairs))
    checks = per_unit("check", nearcheck.check_unit, [_hashes(pairs), _hashes(sets)])
    task = nearcheck.UnionTask(
        corpus=stages.corpus.location,
        config=config,
        sources=[f"corpus.sources[{unit.source}]" for unit in stages.plan.units],
        documents=[result["documents"] for result in signatures],
    )
    union = stages.unit("union", task, f"{neardup.NEAR}/union.json", {**shared, "before": _hashes(checks)})
    (found,) = stages.run("near duplicates, union", nearcheck.union_unit, [union])
    stages.say(
        f"prepare: {found['removed']:,} near duplicates in {found['groups']:,} groups, the largest of "
        f"{found['largest_group']:,}"
    )
    for alarm in found["alarms"]:
        stages.warn(alarm)
    unit_of, row_of = nearcheck.read_removals(stages.corpus)
    return {(unit, row): neardup.REASON for unit, row in zip(unit_of.tolist(), row_of.tolist(), strict=True)}


def contaminated(
    stages: "Stages", documents: Sequence["Result"], removed: Mapping[tuple[int, int], str]
) -> tuple[Removed, str]:
    """The documents to remove because they hold text of an evaluation set, and a hash of what was found, which covers
    the passages to be cut from others; `removed` ones are not searched."""
    from data_prep import decontaminate

    assert stages.config.decontamination is not None
    sets = [  # a worker's working directory is another one
        chosen
        if "://" in chosen.path
        else chosen.model_copy(update={"path": str(Path(chosen.path).expanduser().absolute())})
        for chosen in stages.config.decontamination.sets
    ]
    config, units = stages.config.decontamination.model_copy(update={"sets": tuple(sets)}), len(stages.plan.units)
    excluded = _exclude(stages, "before-decontamination", {**_exact(stages), **removed})
    index_task = decontaminate.IndexTask(corpus=stages.corpus.location, config=config)
    settings = stages.plan.config["decontamination"]
    index_identity = {"settings": settings, "recipe": stages.plan.recipe, "files": decontaminate.set_versions(config)}
    (index,) = stages.run(
        "evaluation sets",
        decontaminate.index_unit,
        [stages.unit("index", index_task, f"{decontaminate.FOLDER}/index.record.json", index_identity)],
    )
    found = stages.run(
        "decontamination",
        decontaminate.decontaminate_unit,
        [
            stages.unit(
                f"decontamination {unit:05d}",
                decontaminate.DecontaminateTask(
                    corpus=stages.corpus.location,
                    config=config,
                    unit=unit,
                    units=units,
                    min_chars=max(1, stages.config.cleaning.min_chars),
                    excluded=excluded[0],
                ),
                f"{decontaminate.FOLDER}/{unit:05d}.json",
                {
                    "index": _hashes([index]),
                    "settings": settings,
                    "min_chars": stages.config.cleaning.min_chars,
                    "excluded": excluded[1],
                    "unit": unit,
                    "documents": documents[unit]["sha256"],
                },
            )
            for unit in range(units)
        ],
        [result["text_bytes"] for result in documents],
    )
    _report(stages, index, found)
    reasons = {
        (unit, row): reason
        for unit in range(units)
        for row, reason in decontaminate.read_removed(stages.corpus, unit).items()
    }
    return reasons, _hashes(found)


def _report(stages: "Stages", index: "Result", found: Sequence["Result"]) -> None:
    """What was found, by task."""
    from data_prep import decontaminate

    report = decontaminate.report_unit(
        decontaminate.ReportTask(corpus=stages.corpus.location, units=len(stages.plan.units))
    )
    columns = ["task", "examples", "too short", "examples hit", "by the short rule", "documents hit"]
    rows = [
        [
            task,
            index["tasks"][task]["examples"],
            index["tasks"][task]["too_short"],
            hits["examples_hit"],
            hits["examples_hit_by_short_rule"],
            hits["documents_hit"],
        ]
        for task, hits in report.items()
    ]
    if stages.console is not None:
        stages.console.table("Text of evaluation sets in the corpus", columns, rows)
    if stages.on_event is not None:
        totals = {
            name: sum(result[name] for result in found)
            for name in ("documents_removed", "documents_cut", "characters_cut")
        }
        stages.on_event("contamination", tasks=report, **totals)


def _exact(stages: "Stages") -> Removed:
    """The exact duplicates, where they are dropped."""
    if not stages.config.drop_duplicates:
        return {}
    columns = tables.read_columns(stages.corpus, len(stages.plan.units))
    repeated = exact_duplicates(columns)
    places = zip(columns.unit[repeated].tolist(), columns.row[repeated].tolist(), strict=True)
    return dict.fromkeys(places, "duplicate")


def _exclude(stages: "Stages", name: str, removed: Mapping[tuple[int, int], str]) -> tuple[str, str]:
    """Write which documents later stages need not look at; returns (the file's name, what identifies its content)."""
    from data_prep import neardup

    places = np.array(sorted(removed), dtype=np.int64).reshape(-1, 2)
    path = f"{neardup.NEAR}/{name}.bin"
    neardup.write_excluded(stages.corpus, path, places[:, 0], places[:, 1], len(stages.plan.units))
    return path, fingerprint(places.tolist())


def _hashes(results: Sequence["Result"]) -> str:
    """One hash over all files that units wrote."""
    return fingerprint([[name, digest] for result in results for name, _, digest in result["files"]])
