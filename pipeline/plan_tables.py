"""A plan as a person reads it, and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pipeline.console import Console, duration
from pipeline.devices import GIB
from pipeline.plan import ArmPlan, Plan, RunPlan
from pipeline.plan_memory import RESERVE, Memory, Setting


def show(plan: Plan, grids: dict[str, list[tuple[Setting, Memory]]], console: Console) -> None:
    """Every table, and below each what its figures rest on."""
    _size(plan, console)
    _runs(plan, console)
    if grids:
        arm, grid = max(grids.items(), key=lambda one: max(memory.total for _, memory in one[1]))
        _memory(plan, arm if len(grids) == 1 else f"{arm}, which needs most", grid, console)
    _links(plan, console)


def _size(plan: Plan, console: Console) -> None:
    console.table(
        "Networks: parameters, and training FLOPs a token",
        ["arm", "network", "parameters", "layers", "attention", "heads", "model FLOPs", "share"],
        [row for arm in plan.arms for row in _networks(arm)],
    )
    console.say(
        "  Model FLOPs: matmuls forward and backward, embedding look-ups free; parameters that two networks share are "
        "the first's. By the ELECTRA paper's convention a token costs "
        + ", ".join(f"{arm.paper:.3g} ({arm.arm})" for arm in plan.arms)
    )


def _networks(arm: ArmPlan) -> list[list[object]]:
    total = sum(part.total for part in arm.parts)
    rows: list[list[object]] = []
    for part in sorted(arm.parts, key=lambda part: part.network == "generator"):
        parameters = f"{arm.sizes[part.network].total:,}"
        figures = [f"{value:.3g}" for value in (part.layers, part.attention, part.outside, part.total)]
        rows.append([arm.arm, part.network, parameters, *figures, f"{part.total / total:.1%}"])
    if len(rows) > 1:
        rows.append([arm.arm, "together", f"{arm.parameters:,}", "", "", "", f"{total:.3g}", ""])
    return rows


def _runs(plan: Plan, console: Console) -> None:
    stated = plan.stated
    pace = "" if stated.device.peak is None else f" at an MFU of {stated.mfu:g}"
    console.table(
        f"Training on {stated.gpus} × {stated.device.name}{pace}",
        ["arm", "budget", "seeds", "steps", "tokens", "epochs", "model FLOPs", "paper FLOPs", "time", "USD"],
        [_run(run) for run in plan.runs],
    )
    if plan.assumed:
        console.say("  The corpus is not prepared: rows are taken to be full, and --corpus-tokens gives epochs.")
    if plan.seconds is None:
        console.say("  No rate is stated for a CPU: electra experiment run --dry-run measures this machine's.")
        return
    energy = stated.energy(plan.seconds)
    count = sum(run.seeds for run in plan.runs)
    parts = [f"{'1 run' if count == 1 else f'all {count} runs'}: {duration(plan.seconds)}"]
    parts.append(f"{plan.seconds / 3600 * stated.gpus:,.0f} GPU-hours")
    assumed = " (an assumption; --price)" if stated.price == stated.device.price else ""
    parts.append(f"{_money(stated.cost(plan.seconds))} USD at {stated.price:g} a GPU-hour{assumed}")
    parts += [] if energy is None else [f"{energy:,.0f} kWh at full board power"]
    more = "The learning-rate sweep, saving" if plan.swept else "Saving"
    console.say(f"  {', '.join(parts)}. {more}, held-out evaluation, restarts and fine-tuning come on top.")


def _run(run: RunPlan) -> list[object]:
    epochs = "–" if run.epochs is None else f"{run.epochs:.3g}"
    time = "–" if run.seconds is None else duration(run.seconds)
    cost = "–" if run.cost is None else _money(run.cost)
    figures = [f"{run.tokens:.3g}", epochs, f"{run.model_flops:.3g}", f"{run.paper_flops:.3g}", time, cost]
    return [run.arm, f"{run.budget:.2e}", run.seeds, f"{run.steps:,}", *figures]


def _money(cost: float) -> str:
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:,.2f}"


def _memory(plan: Plan, arm: str, grid: Sequence[tuple[Setting, Memory]], console: Console) -> None:
    room = plan.stated.device.memory
    micros = sorted({setting.micro_batch for setting, _ in grid})
    rows = []
    for stage in sorted({setting.stage for setting, _ in grid}):
        own = {(one.checkpointing, one.micro_batch): memory for one, memory in grid if one.stage == stage}
        cells = [_gib(own[again, micro], room) for again in (False, True) for micro in micros]
        rows.append([stage, f"{own[False, micros[0]].model / GIB:.1f}", *cells])
    columns = [f"{'again' if again else 'kept'} {micro}" for again in (False, True) for micro in micros]
    have = "" if room is None else f" of {room / GIB:.0f}"
    console.table(f"Memory of a GPU, GiB{have}: {arm}", ["ZeRO", "model", *columns], rows)
    console.say(
        f"  By micro-batch, activations kept or computed again (training.compute.activation_checkpointing); attention "
        f"{plan.setting.attention}. An upper estimate with {RESERVE / GIB:g} GiB in reserve; * does not fit."
    )


def _gib(memory: Memory, room: int | None) -> str:
    return f"{memory.total / GIB:.1f}{'*' if room is not None and memory.total > room else ''}"


def _links(plan: Plan, console: Console) -> None:
    console.table(
        f"A step of {plan.global_batch:,} rows at ZeRO {plan.setting.stage}, and a checkpoint",
        ["arm", "compute", "sent by a GPU, GB", "over links", "of a step", "checkpoint, GB"],
        [_link(arm) for arm in plan.arms],
    )
    if plan.stated.gpus > 1:
        console.say(
            f"  Links {plan.arms[0].traffic.link} at their stated speed, and nothing hidden behind computing: on a GPU "
            "stages 1 to 3 overlap most of it with the backward pass."
        )


def _link(arm: ArmPlan) -> list[object]:
    seconds, sent = arm.step_seconds, arm.traffic.sent / 1e9
    compute = "–" if seconds is None else f"{seconds:.3g} s"
    share = "–" if seconds is None else f"{arm.traffic.seconds / (seconds + arm.traffic.seconds):.1%}"
    return [
        arm.arm,
        compute,
        f"{sent:.3g}",
        f"{arm.traffic.seconds * 1e3:.3g} ms",
        share,
        f"{arm.checkpoint / 1e9:.3g}",
    ]


def as_json(plan: Plan, grids: dict[str, list[tuple[Setting, Memory]]]) -> dict[str, Any]:
    """The same as plain figures; memory in bytes."""
    stated = plan.stated
    return {
        "device": asdict(stated.device),
        "gpus": stated.gpus,
        "mfu": stated.mfu,
        "price": stated.price,
        "corpus_assumed": plan.assumed,
        "setting": asdict(plan.setting),
        "arms": [_arm(arm) for arm in plan.arms],
        "runs": [asdict(run) for run in plan.runs],
        "memory": {
            arm: [{**asdict(setting), **asdict(memory), "total": memory.total} for setting, memory in grid]
            for arm, grid in grids.items()
        },
        "seconds": plan.seconds,
        "cost": None if plan.seconds is None else stated.cost(plan.seconds),
    }


def _arm(arm: ArmPlan) -> dict[str, Any]:
    return {
        "arm": arm.arm,
        "parameters": arm.parameters,
        "networks": {name: asdict(size) for name, size in arm.sizes.items()},
        "flops_a_token": {part.network: {**asdict(part), "total": part.total} for part in arm.parts},
        "paper_flops_a_token": arm.paper,
        "memory": {**asdict(arm.memory), "total": arm.memory.total},
        "traffic": asdict(arm.traffic),
        "step_seconds": arm.step_seconds,
        "checkpoint_bytes": arm.checkpoint,
    }
