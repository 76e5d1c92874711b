"""A recorded run as Python sees it: lists of dicts, from the program's own JSON and CSV.

Times are integer nanoseconds, sizes bytes, fractions of 1. A unit is named by the FQN of its module; "" is the root.
"""
from __future__ import annotations

import csv
import io
import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from . import files, program, ranks
from .causes import Cause, name_causes
from .shown import quoted, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas

    from .types import (Advice, Analysis, CauseRow, CheckResult, CollectiveRow, Comparison, OrderRow, PartFigures, PlanFile, SearchResult, Simulation, StepRow,
                        UnitFigures, UnitRow)

    Place = str | os.PathLike[str]
    Plan = Place | PlanFile | Mapping[str, Any]

Row = TypeVar("Row")
__tracebackhide__ = program.says_everything  # for pytest

_NOT_COLLECTIVES = ("copy", "copy_in", "copy_out", "compute")


def parts_of(unit: UnitFigures) -> list[tuple[str, PartFigures]]:
    """Names and figures of a unit's collectives, in the order of `analyze --json`."""
    return [(part, cast("PartFigures", figures)) for part, figures in unit.items() if isinstance(figures, dict)]


class Rows(list[Row]):
    """A list of dicts with equal keys. `columns`: the keys, also where there is no row."""

    def __init__(self, rows: Iterable[Row] = (), columns: Iterable[str] = ()) -> None:
        super().__init__(rows)
        self.columns = list(columns) or list(cast("Mapping[str, object]", self[0]) if self else ())

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a pandas.DataFrame."""
        import pandas

        return pandas.DataFrame.from_records(self, columns=self.columns)


def open(path: Place | Sequence[Place], *more: Place, on: Any = None, summaries: Place | None = None) -> Run:  # noqa: A001  shardlens.open reads as files do
    """The run at `path`: a run directory, a directory of traces, or traces; also a list of these, and summaries of `analyze --summarize`.

    With `on`, each trace is summarized where it is read, and the summaries are analyzed: `on` is an executor of concurrent.futures, a Dask client, the
    module ray, "dask" or "ray". Paths of fsspec ("s3://…") are summarized too, without `on` in this process. `summaries`: the directory in which
    the summaries are kept.

    Errors: ShardlensError if it contains no trace.
    """
    paths: list[Place] = [*(path if isinstance(path, (list, tuple)) else [cast("Place", path)]), *more]
    if on is not None or summaries is not None or any(map(ranks.is_remote, paths)):
        return MergedRun(paths, on, summaries)
    return Run(paths)


def _flags(settings: Mapping[str, object]) -> list[str]:
    """Keyword arguments as flags: world_size=8 is --world-size 8, no_sync=True is --no-sync; None and False are left out, a list repeats its flag."""
    flags: list[str] = []
    for key, values in settings.items():
        flag = "--" + key.replace("_", "-")
        for value in values if isinstance(values, (list, tuple)) else [values]:
            if value is None or value is False:
                continue
            if value is True:
                flags.append(flag)
            elif str(value).startswith("-"):  # which would be read as the next flag
                flags.append(f"{flag}={value}")
            else:
                flags += [flag, str(value)]
    return flags


def _with_plan(command: Sequence[object], plan: Plan | None, settings: Mapping[str, object]) -> Simulation:
    """The program's answer for a plan: a path, or a dict with a plan file's contents."""
    if plan is None:
        return cast("Simulation", program.ask([*command, *_flags(settings)]))
    if isinstance(plan, (str, os.PathLike)):
        return cast("Simulation", program.ask([*command, "--plan", plan, *_flags(settings)]))
    import json

    with files.PrivateFolder() as directory:
        file = Path(directory) / "plan.json"
        files.write(file, json.dumps(plan))
        return cast("Simulation", program.ask([*command, "--plan", file, *_flags(settings)]))


def _source(run_or_model: Run | Place) -> list[Place]:
    """The flag for what is simulated: a recorded run, or a model's config or model file."""
    if isinstance(run_or_model, Run):
        return ["--workload", run_or_model.paths[0]]
    path = Path(run_or_model)
    recorded = path.is_dir() and any(path.glob("*.pt.trace.json*"))
    return ["--workload" if recorded else "--model", path]


def simulate(run_or_model: Run | Place, plan: Plan | None = None, **settings: object) -> Simulation:
    """`shardlens simulate --json` as a dict. Keywords are its flags: strategy="shard_grad_op", hardware="8xH100", accumulate=4."""
    return _with_plan(["simulate", *_source(run_or_model)], plan, settings)


def search(run_or_model: Run | Place, **settings: object) -> SearchResult:
    """`shardlens search --json` as a dict. Keywords are its flags: hardware="8xH100", memory_limit="70GiB", …"""
    return cast("SearchResult", program.ask(["search", *_source(run_or_model), *_flags(settings)], exit_codes=(0, 1)))


def advise(run: Run | Place, **settings: object) -> Advice:
    """The changes of a recorded run's plan that would pay: `shardlens advise --json` as a dict. `run`: a Run or a path; keywords are flags: top=3."""
    paths: Sequence[Place] = run.paths if isinstance(run, Run) else [run]
    return cast("Advice", program.ask(["advise", *paths, *_flags(settings)], exit_codes=(0, 5)))


def _cell(key: str, text: str) -> str | int | float | None:
    """A cell of the program's CSV: an integer, a fraction, a text, or None if it is empty."""
    if key == "cause" and text:
        return Cause(text)
    if key in ("unit", "hook_unit", "what", "kind", "steps"):  # may look like numbers, or be ""
        return text
    if text == "":
        return None
    if key.endswith("_ratio") or key.endswith("_gbps"):
        return float(text)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _has_traces(directory: Path) -> bool:
    return any(any(directory.glob(pattern)) for pattern in ("*.json.gz", "*.json.zst", "*.spool", "rank*.json"))


class Run:
    """What `shardlens.open` returns. The program runs when a figure is first asked for, and its answer is kept.

    A directory of several run directories is one Run too: check() compares all of them, every other figure is of the first by name.
    """

    def __init__(self, paths: Sequence[Place]) -> None:
        found = [Path(path) for path in paths]
        for path in found:
            if not path.exists():
                raise program.ShardlensError(f"{path}: no such file or directory", 3)
        self.checked: Sequence[Place] = found  # what check() compares with the baseline
        merged = ranks.are_summaries(found)
        if not merged and len(found) == 1 and found[0].is_dir() and not _has_traces(found[0]):
            runs = sorted(path for path in found[0].iterdir() if path.is_dir() and _has_traces(path))
            found = runs[:1] or found
        self.paths: Sequence[Place] = found
        self._prepare(["merge" if merged else "analyze", *self.paths], has_traces=not merged)

    def _prepare(self, command: Sequence[object], has_traces: bool) -> None:
        self._command, self._can_read_traces = command, has_traces
        self.verdicts: list[Verdict] = []  # of check(), in order
        self.baseline: Place | None = None  # the default baseline of check()
        self._analysis: Analysis | None = None
        self._tables: dict[str, Rows[Any]] = {}

    def _require_traces(self, what: str) -> None:
        if not self._can_read_traces:
            raise program.ShardlensError(f"{what} needs the traces as local files; this run was opened from summaries", 2)

    @property
    def analysis(self) -> Analysis:
        """`shardlens analyze --json` as a dict (`shardlens docs metrics`)."""
        if self._analysis is None:
            self._analysis = cast("Analysis", name_causes(program.ask(self._command)))
        return self._analysis

    def _table(self, by: str) -> Rows[Any]:
        if by not in self._tables:
            text = program.run([*self._command, "--by", by, "--csv"]).stdout
            reader = csv.DictReader(io.StringIO(text))
            self._tables[by] = Rows(({key: _cell(key, value) for key, value in row.items()} for row in reader), reader.fieldnames or ())
        return Rows(self._tables[by], self._tables[by].columns)

    def units(self) -> Rows[UnitRow]:
        """One row for each rank, unit and kind of collective: rank, unit, collective, count, bytes, busy_ns, exposed_ns, lead_ns, cause, issued_by, …"""
        rows = Rows(cast("UnitRow", {"rank": rank["rank"], "unit": unit["fqn"], "collective": part, **figures})
                    for rank in self.analysis["ranks"] for unit in rank["units"] for part, figures in parts_of(unit))
        if not rows:
            rows.columns = ["collective" if column == "part" else column for column in self._table("unit").columns]
        return rows

    def steps(self) -> Rows[StepRow]:
        """One row for each rank and step: rank, step, span_ns, compute_ns, comm_ns, exposed_comm_ns, …"""
        return self._table("step")

    def collectives(self) -> Rows[CollectiveRow]:
        """One row for each collective that ran: rank, unit, kind, section, step, issued_ns, start_ns, end_ns, exposed_ns, cause, bytes, …"""
        table = self._table("span")
        return Rows((row for row in table if row["kind"] not in _NOT_COLLECTIVES), table.columns)

    def causes(self) -> Rows[CauseRow]:
        """Exposed time by cause, the largest first: cause, exposed_ns, count, explanation."""
        sums: dict[str | None, CauseRow] = {}
        for row in self.collectives():
            cause = row["cause"]
            if row["exposed_ns"] and cause is not None:
                entry = sums.setdefault(cause, {"cause": cause, "exposed_ns": 0, "count": 0, "explanation": self.explanation(cause)})
                entry["exposed_ns"] += row["exposed_ns"]
                entry["count"] += 1
        return Rows(sorted(sums.values(), key=lambda entry: -entry["exposed_ns"]), ("cause", "exposed_ns", "count", "explanation"))

    def explanation(self, cause: str) -> str:
        """What a cause means, as the program says it; "" if it says nothing."""
        return self.analysis["causes"].get(cause, "")

    def order(self) -> Rows[OrderRow]:
        """What the host did with each unit, in order: rank, steps, what, unit, section, by, hook_unit."""
        return self._table("order")

    def gathers(self, unit: str, rank: int = 0) -> Count:
        """All-gathers of `unit` in a step. Errors: ValueError if steps differ or the rank has no such unit."""
        unit = "" if unit == "(root)" else unit
        steps = [row["step"] for row in self.steps() if row["rank"] == rank]
        counts = dict.fromkeys(steps, 0)
        known = set()
        for row in self.collectives():
            if row["rank"] == rank:
                known.add(row["unit"])
                if row["unit"] == unit and row["kind"].startswith("all_gather") and row["step"] in counts:
                    counts[row["step"]] += 1
        if unit not in known:
            raise ValueError(f"rank {rank} has no collective of a unit {quoted(unit)}; its units: {', '.join(sorted(map(quoted, known)))}")
        if len(set(counts.values())) > 1:
            raise ValueError(f"steps differ: all-gathers of {quoted(unit)} in step " + ", ".join(f"{step}: {n}" for step, n in counts.items()))
        return Count(next(iter(counts.values())), self.worst(unit))

    def hidden_fraction(self, unit: str | None = None) -> Hidden:
        """The part of the communication time in which something computed, 0 to 1, over all ranks; of one unit's collectives if `unit` is given.

        Errors: ValueError if there is no communication, of which a part could be hidden.
        """
        if unit is None:
            busy = sum(rank["comm_ns"] for rank in self.analysis["ranks"])
            exposed = sum(rank["exposed_comm_ns"] for rank in self.analysis["ranks"])
        else:
            unit = "" if unit == "(root)" else unit
            rows = [row for row in self.units() if row["unit"] == unit]
            if not rows:
                raise ValueError(f"no collective of a unit {quoted(unit)}; units: {', '.join(sorted({quoted(row['unit']) for row in self.units()}))}")
            busy = sum(row["busy_ns"] for row in rows)
            exposed = sum(row["exposed_ns"] for row in rows)
        if busy == 0:
            of_unit = "" if unit is None else f" of {unit or '(root)'}"
            raise ValueError(f"no communication{of_unit} in the recorded steps, so no part of it is hidden" + self._why_none())
        return Hidden(1 - exposed / busy, self.worst(unit))

    def peak_bytes(self, rank: int | None = None) -> int:
        """The peak of the bytes that PyTorch's allocator had given out in the recorded steps, of all ranks or of one.

        Errors: ValueError if the trace has no allocations: record(memory=True), or torch.profiler's profile_memory.
        """
        peaks = [device["peak_allocated_bytes"] for each in self.analysis["ranks"] if rank in (None, each["rank"]) for device in each["memory"]]
        known = [peak for peak in peaks if peak is not None]
        if not known:
            raise ValueError("the traces have no allocations; record them with shardlens.record(memory=True) or profile_memory of torch.profiler")
        return max(known)

    def _why_none(self) -> str:
        """What the program says about traces without communication."""
        about = [d["message"] for d in self.analysis["diagnostics"] if "no kernels" in d["message"] or "no event has a category" in d["message"]]
        return "".join(f"; {message}" for message in about)

    def worst(self, unit: str | None = None) -> str:
        """The collectives with most exposed time, in words."""
        rows = sorted((row for row in self.units() if unit is None or row["unit"] == unit), key=lambda row: -row["exposed_ns"])[:3]
        return "; ".join(
            shown(f"{row['collective']} of {row['unit'] or '(root)'} on rank {row['rank']}: {_ms(row['exposed_ns'])} ms exposed, cause {row['cause']}")
            for row in rows if row["exposed_ns"])

    def check(self, against: Place | None = None, **settings: object) -> Verdict:
        """Compares this run with a baseline: a path of a run or of a file of `check --save-baseline`. Returns a Verdict, true if it passed.

        Settings are flags of `check`: metric="structure", metric=["structure", "peak_memory:2%"], max_peak_memory="70GiB" (which needs no baseline).
        """
        self._require_traces("check")
        against = against or self.baseline
        if against is None and ("max_peak_memory" not in settings or "metric" in settings):
            raise ValueError("check needs a baseline: run.check(against=PATH), or --shardlens-baseline PATH")
        baseline = [] if against is None else ["--baseline", against]
        arguments = ["check", *baseline, "--candidate", *self.checked, *_flags(settings)]
        self.verdicts.append(Verdict(program.ask(arguments, exit_codes=(0, 1, 5))))
        return self.verdicts[-1]

    def simulate(self, plan: Plan | None = None, **settings: object) -> Simulation:
        """What another plan would take on this run's machine: `shardlens simulate --workload` as a dict."""
        self._require_traces("simulate")
        return simulate(self, plan, **settings)

    def advise(self, **settings: object) -> Advice:
        """The changes of this run's plan that would pay, and what is wasteful as it is: `shardlens advise --json` as a dict."""
        self._require_traces("advise")
        return advise(self, **settings)

    def compare(self, other: Run | Place) -> Comparison:
        """`shardlens compare --json` of this run (A) and another (B)."""
        self._require_traces("compare")
        return cast("Comparison", program.ask(["compare", self.paths[0], other.paths[0] if isinstance(other, Run) else other]))

    def summary(self) -> str:
        """The output of `shardlens analyze`, for people."""
        return program.run(self._command).stdout

    def __repr__(self) -> str:
        more = f", … ({len(self.paths)} paths)" if len(self.paths) > 8 else ""
        return f"shardlens.open({', '.join(quoted(path) for path in self.paths[:8])}{more})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the ranks' figures, and the units with most exposed communication."""
        head = "".join(
            f"<tr><td>{rank['rank']}</td><td>{_ms(rank['span_ns'])}</td><td>{_ms(rank['compute_ns'])}</td><td>{_ms(rank['exposed_comm_ns'])}</td>"
            f"<td>{_percent(rank['overlap_ratio'])}</td></tr>" for rank in self.analysis["ranks"])
        worst = sorted(self.units(), key=lambda row: -row["exposed_ns"])[:10]
        body = "".join(
            f"<tr><td>{row['rank']}</td><td style='text-align:left'>{escape(row['unit'] or '(root)')}</td><td style='text-align:left'>{escape(row['collective'])}</td>"
            f"<td>{row['count']}</td><td>{_ms(row['exposed_ns'])}</td><td style='text-align:left'>{escape(Cause(row['cause']).words if row['cause'] else '')}</td></tr>" for row in worst)
        return (
            f"<h4>{escape(', '.join(map(str, self.paths)))}</h4>"
            "<table><tr><th>rank</th><th>recorded, ms</th><th>compute, ms</th><th>exposed communication, ms</th><th>hidden</th></tr>" + head + "</table>"
            "<table><tr><th>rank</th><th>unit</th><th>collective</th><th>count</th><th>exposed, ms</th><th>cause</th></tr>" + body + "</table>")


class MergedRun(Run):
    """A run whose traces were summarized where they lie. What needs the traces themselves works if they are local files."""

    def __init__(self, paths: Sequence[Place], on: Any = None, summaries: Place | None = None) -> None:
        if summaries is None:
            self._directory = files.PrivateFolder()  # removed with this object
            summaries = self._directory.path
        written = ranks.write_summaries(paths, on, summaries)
        remote = any(map(ranks.is_remote, paths))
        self.paths = self.checked = [str(path) if ranks.is_remote(path) else Path(path) for path in paths]
        self._prepare(["merge", *written], has_traces=not remote)


class Count(int):
    """A number of collectives. `worst`: which of them are exposed most, in words, for the message of a test that fails."""

    worst: str

    def __new__(cls, value: int, worst: str) -> Count:
        self = super().__new__(cls, value)
        self.worst = worst
        return self


class Hidden(float):
    """A fraction that says, where a test prints it, which collectives are exposed most."""

    worst: str

    def __new__(cls, value: float, worst: str) -> Hidden:
        self = super().__new__(cls, value)
        self.worst = worst
        return self

    def __repr__(self) -> str:
        return float.__repr__(self) + (f" (most exposed: {self.worst})" if self.worst else "")


class Verdict:
    """What `check` found: true if it passed. `verdict`: "pass", "regression" or "inconclusive"; `details`: `check --json` (`shardlens docs gate-ci`)."""

    def __init__(self, details: CheckResult) -> None:
        self.details = details
        self.verdict = details["verdict"]

    def __bool__(self) -> bool:
        return self.verdict == "pass"

    def __repr__(self) -> str:
        return f"<{self.words()}>"

    def words(self) -> str:
        """The verdict, what changed by how much, and where it comes from."""
        slower = [m for m in self.details["metrics"] if m["verdict"] == "regression"]
        changed = [f"{m['name']} {_ms(m['baseline'])} to {_ms(m['candidate'])} ms" for m in slower]
        above = [row for row in self.details["memory"] if row["verdict"] == "regression"]
        above.sort(key=lambda row: (row["allowed_bytes"] or 0) - row["candidate_bytes"])
        changed += [f"peak memory of rank {row['rank']} on {row['device']} {row['candidate_bytes']} bytes, {row['allowed_bytes']} allowed" for row in above[:1]]
        where: list[str] = []  # what the changed times come from, the largest part first
        for metric in slower:
            rows = [row for row in self.details["attribution"] if row["metric"] == metric["name"] and row["delta_ns"] > 0]
            rows.sort(key=lambda row: -row["delta_ns"])
            where += [f"{row['part']} of {row['unit'] or '(root)'} +{_ms(row['delta_ns'])} ms" for row in rows[:3]]
        words = [self.verdict, *self.details["causes"][:5], *changed, *dict.fromkeys(where), self.details["reason"]]
        return "; ".join(shown(word) for word in words if word)


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.3f}"


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.1f} %"
