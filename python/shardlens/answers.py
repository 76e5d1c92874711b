"""Short answers about recorded runs: text of at most 2 kB that ends with the commands that show more. For shardlens.mcp; only Python's standard library.

Each answer gives figures of the program's own JSON; nothing is computed here but sums and shares.
"""
from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING, Any

from .ranks import is_remote
from .run import _flags, _ms, _percent, parts_of
from .run import open as open_run
from .shown import quoted, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .run import Place, Plan, Run
    from .types import AdvisedChange, PartFigures, PlanFile, Simulation, UnitRow

LIMIT = 2000  # bytes of UTF-8
# Flags that a client may set: none that writes, runs or loads anything but what is named here.
_SIMULATE = ("hardware", "stack", "transport", "strategy", "mesh", "world_size", "batch", "seq", "accumulate", "no_sync", "optimizer", "optimizer_impl", "momentum",
             "precision", "expert_skew", "ranks", "slow_rank", "host", "operator_us", "action_us", "unit_us", "waits_for_loss")
_ADVISE = ("memory_limit", "top")
_SEARCH = ("hardware", "stack", "transport", "plan", "precisions", "per_block", "world_size", "batch", "seq", "accumulate", "no_sync", "optimizer", "optimizer_impl", "momentum",
           "precision", "expert_skew", "compile", "cuda_graphs", "matmul_dtype", "matmul_tail", "loss_chunks",
           "expandable_segments")
_LINE = 300


def _shorter(text: str, limit: int) -> str:
    """The text, or its two ends, in at most `limit` bytes."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    half = (limit - 5) // 2
    return encoded[:half].decode(errors="ignore") + " … " + encoded[-half:].decode(errors="ignore")


def fitted(lines: Sequence[str], evidence: Sequence[Sequence[object]]) -> str:
    """The lines that fit, how many do not, and the commands of `evidence` that print everything."""
    commands = [_shorter(shown("evidence: " + shlex.join(map(str, ["shardlens", *command]))), 400) for command in evidence]
    room = LIMIT - sum(len(line.encode()) + 1 for line in commands) - 40
    kept: list[str] = []
    for line in lines:
        line = _shorter(shown(line), _LINE)
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    if len(kept) < len(lines):
        kept.append(f"({len(lines) - len(kept)} more lines left out)")
    return "\n".join([*kept, *commands])


def _unit(name: str) -> str:
    return name or "(root)"


def _by(figures: PartFigures | UnitRow) -> str:
    return f", issued by {figures['issued_by']}" if figures["issued_by"] else ""


def _meaning(explanation: str) -> str:
    return f" ({explanation})" if explanation else ""


def _warnings(run: Run) -> list[str]:
    return [f"{entry['severity']}: {entry['message']}" for entry in run.analysis["diagnostics"]]


def _order(run: Run) -> Iterator[str]:
    """A line for each rank whose actions came in another order than planned."""
    for rank in run.analysis["ranks"]:
        order = rank["order"]
        for check, first, second in ((order["planned_vs_issued"], "planned", "issued"), (order["issued_vs_started"], "issued", "started")):
            difference = check["first_difference"]
            if difference:
                yield (f"order, rank {rank['rank']}, step {difference['step']}: {first} {difference['expected']}, {second} {difference['found']}"
                       + "".join(f"; {row['collective']} {row['found']} times, expected {row['expected']}" for row in difference.get("counts", [])))


def _waste(run: Run, unit: str | None = None) -> Iterator[str]:
    for rank in run.analysis["ranks"]:
        for row in rank["waste"]:
            if unit is not None and row["where"] not in (unit, _unit(unit)):
                continue
            yield f"waste, rank {rank['rank']}: {row['kind']} of {_unit(row['where'])}, {row['count']} times, {_ms(row['lost_ns'])} ms lost"


def _allowed(settings: Mapping[str, Any] | None, names: Sequence[str]) -> Mapping[str, Any]:
    """The settings, if all are among `names` and simple values. Errors: ValueError; a client's text must not become another flag."""
    settings = settings or {}
    for key, value in settings.items():
        if key not in names:
            raise ValueError(f"settings: '{key}' is not accepted here; expected {', '.join(names)}")
        if value is not None and not isinstance(value, (bool, int, float, str)):
            raise ValueError(f"settings: {key} is {type(value).__name__}, expected a number, a text or a truth value")
        if isinstance(value, str) and value.startswith("-"):
            raise ValueError(f"settings: {key} is '{value}', which begins with '-'")
    return settings


def _local(path: Place) -> Place:
    """A path of a run, which the program cannot take for a flag. Errors: ValueError for a URL: a client chooses no servers."""
    if is_remote(path):
        raise ValueError(f"{path}: expected a path of this machine")
    return os.path.abspath(path) if str(path).startswith("-") else path


def analyze(path: Place) -> str:
    """What a run did: times of each rank, the collectives that are exposed most and why, differences of order, waste."""
    path = _local(path)
    run = open_run(path)
    lines = []
    for rank in run.analysis["ranks"][:4]:
        lines.append(
            f"rank {rank['rank']}: {len(rank['steps'])} steps, {_ms(rank['span_ns'])} ms = compute {_ms(rank['compute_ns'])} + exposed communication "
            f"{_ms(rank['exposed_comm_ns'])} + exposed copies {_ms(rank['exposed_copy_ns'])} + idle {_ms(rank['idle_ns'])}; "
            f"{_percent(rank['overlap_ratio'])} of communication hidden")
    if len(run.analysis["ranks"]) > 4:
        lines.append(f"{len(run.analysis['ranks']) - 4} more ranks")
    for row in run.causes()[:4]:
        lines.append(f"cause {row['cause']}{_meaning(row['explanation'])}: {_ms(row['exposed_ns'])} ms exposed in {row['count']} collectives, all ranks and steps")
    lines += [*_order(run)][:3]
    lines += [*_waste(run)][:3]
    rows = sorted((row for row in run.units() if row["exposed_ns"]), key=lambda row: -row["exposed_ns"])
    lines += [f"{_unit(row['unit'])} {row['collective']}, rank {row['rank']}: {_ms(row['exposed_ns'])} of {_ms(row['busy_ns'])} ms exposed, "
              f"{row['count']} times, {row['bytes']} bytes, cause {row['cause']}{_by(row)}" for row in rows[:8]]
    return fitted([*lines, *_warnings(run)], [["analyze", path], ["analyze", path, "--by", "span", "--csv"]])


def explain(path: Place, unit: str, rank: int = 0) -> str:
    """Why one unit's collectives are exposed: counts, bytes, times and causes, and the collectives with most exposed time."""
    path = _local(path)
    run = open_run(path)
    unit = "" if unit == "(root)" else unit
    ranks = [entry for entry in run.analysis["ranks"] if entry["rank"] == rank]
    if not ranks:
        raise ValueError(f"no rank {rank}; ranks: {', '.join(str(entry['rank']) for entry in run.analysis['ranks'])}")
    found = [entry for entry in ranks[0]["units"] if entry["fqn"] == unit]
    if not found:
        raise ValueError(_shorter(f"no unit {quoted(unit)}; units: {', '.join(quoted(entry['fqn']) for entry in ranks[0]['units'])}", 1500))
    steps = len(ranks[0]["steps"])
    lines = [f"{_unit(unit)}, rank {rank}, {steps} steps: compute {_ms(found[0]['compute_ns'])} ms, exposed copies {_ms(found[0]['exposed_copy_ns'])} ms"]
    for part, figures in parts_of(found[0]):
        lead = "" if figures["lead_ns"] is None else f", median lead {_ms(figures['lead_ns'])} ms (negative: it was waited for)"
        lines.append(f"{part}: {figures['count']} times, {figures['bytes']} bytes, busy {_ms(figures['busy_ns'])} ms, exposed {_ms(figures['exposed_ns'])} ms, "
                     f"cause {figures['cause']}{_by(figures)}{lead}")
    named = f"({_unit(unit)})"
    lines += [f"{cause}: {run.explanation(cause)}" for cause in sorted({figures["cause"] for _, figures in parts_of(found[0]) if figures["cause"]})]
    lines += [line for line in _order(run) if named in line or f"({unit})" in line]
    lines += _waste(run, unit)
    rows = sorted((row for row in run.collectives() if row["rank"] == rank and row["unit"] == unit and row["exposed_ns"]), key=lambda row: -row["exposed_ns"])
    for row in rows[:5]:
        lines.append(f"step {row['step']}, {row['kind']} in {row['section']}: issued {row['issued_ns']}, ran {row['start_ns']} to {row['end_ns']} ns, "
                     f"{_ms(row['exposed_ns'])} ms exposed, cause {row['cause']}")
    return fitted([*lines, *_warnings(run)], [["analyze", path, "--by", "span", "--csv"]])


def compare(before: Place, after: Place) -> str:
    """What changed from one run to another: times, where the change of the step comes from, and what the steps did differently."""
    before, after = _local(before), _local(after)
    answer = open_run(before).compare(open_run(after))
    lines = []
    for row in answer["metrics"]:
        if row["name"] in ("step_time", "exposed_comm", "compute"):
            share = "" if row["change"] is None else f" ({100 * row['change']:+.1f} %)"
            noise = {True: ", within noise", False: ", beyond noise", None: ", noise unknown"}[row["within_noise"]]
            lines.append(f"{row['name']}: {_ms(row['baseline'])} to {_ms(row['candidate'])} ms{share}{noise}")
    lines += [f"structure: {row['kind']} of {_unit(row['unit'])}: {row['baseline']} before, {row['candidate']} after" for row in answer["structural"][:6]]
    if len(answer["structural"]) > 6:
        lines.append(f"{len(answer['structural']) - 6} more differences of structure")
    rows = sorted((row for row in answer["attribution"] if row["metric"] == "step_time"), key=lambda row: -abs(row["delta_ns"]))
    lines += [f"{_unit(row['unit'])} {row['part']}: {row['delta_ns'] / 1e6:+.3f} ms of the step" for row in rows[:10] if row["delta_ns"]]
    lines += [f"note: {note}" for note in answer["notes"]]
    return fitted(lines, [["compare", before, after]])


def simulate(path: Place, plan: Plan | None = None, settings: Mapping[str, Any] | None = None) -> str:
    """What another plan would take: of a recorded run (its own error first), or of a model's config on a machine (settings: hardware)."""
    from . import run as runs

    path, settings = _local(path), _allowed(settings, _SIMULATE)
    answer = runs.simulate(path, plan, **settings)
    lines = []
    if answer["baseline"]:
        base = answer["baseline"]
        lines.append(f"the run's own plan: {_ms(base['measured_step_ns'])} ms measured, {_ms(base['simulated_step_ns'])} ms simulated, error {100 * base['error']:+.1f} %")
        change = answer["step_ns"] - base["simulated_step_ns"]
        lines.append(f"this plan: {_ms(answer['step_ns'])} ms a step, {change / 1e6:+.3f} ms ({100 * change / base['simulated_step_ns']:+.1f} %) against the simulated own plan")
    else:
        lines.append(f"this plan: {_ms(answer['step_ns'])} ms a step on {answer['machine']}")
    lines.append(f"compute {_ms(answer['compute_ns'])} + exposed communication {_ms(answer['exposed_comm_ns'])} + exposed copies {_ms(answer['exposed_copy_ns'])} "
                 f"+ idle {_ms(answer['idle_ns'])} ms")
    lines.append(f"peak memory: {answer['peak_allocated_bytes']} bytes allocated, {answer['peak_reserved_bytes']} reserved; "
                 + ", ".join(f"{name} {value}" for name, value in answer["memory"].items()))
    lines += _extrapolated(answer)
    lines += [f"not known: {text}" for text in answer["unknown"]]
    given = [] if plan is None else ["--plan", plan if isinstance(plan, str) else "PLAN.json"]
    return fitted(lines, [["simulate", *runs._source(path), *given, *_flags(settings)]])


def search(path: Place, memory_limit: str, settings: Mapping[str, Any] | None = None) -> str:
    """The fastest plans that fit into a memory limit: of a model's config on a machine (settings: hardware), or of a run that has its model's config. Then the best plan's contents."""
    from . import run as runs

    path = _local(path)
    chosen = {**_allowed(settings, _SEARCH), **_allowed({"memory_limit": memory_limit}, ("memory_limit",))}
    answer = runs.search(path, **chosen)
    best = answer["best"]
    lines = [f"{answer['candidates']} plans, {answer['evaluated']} simulated, {answer['pruned']} left out because they cannot be faster, {answer['refused']} impossible"]
    if best is None:
        lines.append(f"no plan fits into {memory_limit}")
    else:
        lines += [f"best: {best['name']}", f"why: {best['why']}"]
    for found in answer["pareto"][:6]:
        lines.append(f"{found['name']}: {_ms(found['step_ns'])} ms a step, {_ms(found['exposed_comm_ns'])} ms communication exposed, peak {found['peak_reserved_bytes']} bytes reserved, "
                     f"batch {found['batch']}, accumulate {found['accumulate']}")
    if len(answer["pareto"]) > 6:
        lines.append(f"{len(answer['pareto']) - 6} more plans, slower and smaller")
    if answer["per_block"]:
        lines.append(f"with blocks that differ: {answer['per_block']['name']}, {_ms(answer['per_block']['step_ns'])} ms a step")
    if best is not None:
        lines += ["plan: " + line for line in _plan_lines(best["plan"])]
    return fitted(lines, [["search", *runs._source(path), *_flags(chosen)]])


def _plan_lines(plan: PlanFile) -> list[str]:
    """The keys of a plan file, a line each."""
    return [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in plan.items()]


def _extrapolated(priced: Simulation | AdvisedChange) -> list[str]:
    return [f"   rests on a size that was not measured: {row['work']} at {row['beyond']:.3g} x the nearest measured size ({100 * row['share']:.1f} % of the step)"
            for row in priced.get("extrapolated", [])]


def _interval(change: AdvisedChange) -> str:
    low, high = (f"{bound / 1e6:+.3f}" for bound in change["interval_ns"])
    return f"{change['change_ns'] / 1e6:+.3f} ms (90 %: {low} to {high})"


def _verdict(change: AdvisedChange) -> str:
    return change["verdict"] + ("" if change["odds"] is None else f", odds {change['odds']} in 100")


def advise(path: Place, settings: Mapping[str, Any] | None = None, measure: int | None = None) -> str:
    """The changes of a recorded run's plan that would make its steps shorter, after the simulator's error for the run as it is, and its waste.

    `measure`: the first so many changes are also captured on this machine, which runs the recorded training again.
    """
    from . import run as runs

    path, settings = _local(path), dict(_allowed(settings, _ADVISE))
    if measure:
        settings["measure"] = measure
    answer = runs.advise(path, **settings)
    base, changes = answer["baseline"], answer["changes"]
    lines = [f"the run's own plan: {_ms(base['measured_step_ns'])} ms measured, {_ms(base['simulated_step_ns'])} ms simulated, error {100 * base['error']:+.1f} %"
             + ("" if base["fits"] else "; it does not fit")]
    if not changes:
        lines.append("no change is predicted to pay" if base["fits"] else "no change fits")
    elif abs(base["simulated_step_ns"] - base["measured_step_ns"]) > -changes[0]["change_ns"]:
        lines.append("uncertain: this error is larger than the gains below")
    for number, change in enumerate(changes, 1):
        lines.append(f"{number}. {change['title']}: {_ms(change['step_ns'])} ms a step, {_interval(change)}, {_verdict(change)}, peak {change['peak_allocated_bytes']} bytes allocated")
        measured, error = change.get("measured_change_ns"), change.get("measured_error_ns")
        if measured is not None and error is not None:
            lines.append(f"   measured: {measured / 1e6:+.3f} ms, ± {error / 1e6:.3f}")
        if change["hides"]:
            first, more = change["hides"][0], len(change["hides"]) - 1
            lines.append(f"   exposes less: {first['collective']} of {_unit(first['unit'])} {_ms(first['ns'])} ms" + (f", {more} more" if more else ""))
        lines += _extrapolated(change)
        lines += [f"     {line}" for line in change["lines"]]
    lines += [f"waste: {row['kind']} of {_unit(row['unit'])}, {_ms(row['ns'])} ms a step lost: {row['evidence']}" for row in answer["waste"][:3]]
    lines += [f"not predicted to pay: {change['title']}, {_interval(change)}, {_verdict(change)}" for change in answer["others"]]
    lines += [f"not predicted: {row['title']}: {row['reason']}" for row in answer["unknown"]]
    return fitted(lines, [["advise", path, *_flags(settings)]])
