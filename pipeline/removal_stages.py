"""The stages that look for text of evaluation sets and for near duplicates, between documents and the removal list.

What they find lies in their folders, where `data_prep.removals` reads it; identities chain from stage to stage through
the hashes of what the stages before wrote, so a change anywhere redoes what depends on it and nothing else. What the
stages do is `data_prep.decontaminate`, `data_prep.neardup` and `data_prep.nearcheck`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep import tables
from data_prep.settings import fingerprint

if TYPE_CHECKING:
    from pipeline.prepare_stages import Result, Stages


def near_duplicates(stages: "Stages", documents: Sequence["Result"]) -> None:
    """Find the groups of nearly equal documents among those that are neither contaminated nor copies."""
    from data_prep import nearcheck, neardup

    config, units = stages.config.near_duplicates, len(stages.plan.units)
    assert config is not None
    excluded = _excluded(stages)
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


def contaminated(stages: "Stages", documents: Sequence["Result"]) -> str:
    """Find the documents that hold text of an evaluation set; returns a hash of what was found, which covers the
    passages to be cut from others."""
    from data_prep import decontaminate

    assert stages.config.decontamination is not None
    sets = [  # a worker's working directory is another one
        chosen
        if "://" in chosen.path
        else chosen.model_copy(update={"path": str(Path(chosen.path).expanduser().absolute())})
        for chosen in stages.config.decontamination.sets
    ]
    config, units = stages.config.decontamination.model_copy(update={"sets": tuple(sets)}), len(stages.plan.units)
    index_task = decontaminate.IndexTask(corpus=stages.corpus.location, config=config)
    settings = stages.plan.config["decontamination"]
    index_identity = {"settings": settings, "recipe": stages.plan.recipe, "files": stages.plan.evaluation_sets}
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
                    min_chars=max(1, stages.config.cleaning.min_chars),
                ),
                f"{decontaminate.FOLDER}/{unit:05d}.json",
                {
                    "index": _hashes([index]),
                    "settings": settings,
                    "min_chars": stages.config.cleaning.min_chars,
                    "unit": unit,
                    "documents": documents[unit]["sha256"],
                },
            )
            for unit in range(units)
        ],
        [result["text_bytes"] for result in documents],
    )
    _report(stages, index, found)
    return _hashes(found)


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


def _excluded(stages: "Stages") -> tuple[str, str]:
    """Write which documents need not be looked at; returns (the file's name, what identifies its content)."""
    from data_prep import neardup, removals

    columns = tables.read_columns(stages.corpus, len(stages.plan.units))
    reasons = removals.contaminated(stages.corpus, stages.plan, stages.config, columns)
    found = removals.uninteresting(columns, reasons, drop_duplicates=stages.config.drop_duplicates)
    name = f"{neardup.NEAR}/excluded.bin"
    neardup.write_excluded(stages.corpus, name, columns.unit[found], columns.row[found], len(stages.plan.units))
    return name, stages.corpus.sha256(name)


def _hashes(results: Sequence["Result"]) -> str:
    """One hash over all files that units wrote."""
    return fingerprint([[name, digest] for result in results for name, _, digest in result["files"]])
