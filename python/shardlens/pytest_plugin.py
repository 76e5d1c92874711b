"""pytest's fixture `shardlens_run`: a recorded run to assert on.

    pytest --shardlens-run DIR [--shardlens-baseline PATH]

    def test_overlap(shardlens_run):
        assert shardlens_run.gathers("lm_head") == 1
        assert shardlens_run.hidden_fraction() >= 0.9
        assert shardlens_run.check(against="baseline.json")

DIR may contain several run directories: check() then compares all of them, which it needs for a verdict about times (`shardlens docs gate-ci`).

A test may name its own run: @pytest.mark.shardlens_run("out/run", baseline="baseline.json"). The figures, and the verdicts of check(), are
properties of the test in pytest's JUnit file.
"""
from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from .program import ShardlensError
from .shown import shown

if TYPE_CHECKING:
    from .run import Run


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shardlens")
    group.addoption("--shardlens-run", metavar="DIR", help="the run directory, or traces, of the fixture shardlens_run")
    group.addoption("--shardlens-baseline", metavar="PATH", help="the default baseline of shardlens_run.check()")
    parser.addini("shardlens_run", "the run directory of the fixture shardlens_run")
    parser.addini("shardlens_baseline", "the default baseline of shardlens_run.check()")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "shardlens_run(path, baseline=None): the recorded run that the fixture shardlens_run opens")


def _chosen(request: pytest.FixtureRequest, name: str) -> str | None:
    return request.config.getoption(f"--{name.replace('_', '-')}") or request.config.getini(name) or None


@pytest.fixture
def shardlens_run(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[Run]:
    """The run of the test's marker, of --shardlens-run, or of the ini file's shardlens_run."""
    from .run import open as open_run

    marker = request.node.get_closest_marker("shardlens_run")
    if marker and len(marker.args) != 1:
        pytest.fail('@pytest.mark.shardlens_run: expected a run, such as @pytest.mark.shardlens_run("out/run", baseline="baseline.json")', pytrace=False)
    path: str | None = marker.args[0] if marker else _chosen(request, "shardlens_run")
    if path is None:
        pytest.fail("shardlens_run needs a run: pytest --shardlens-run DIR, @pytest.mark.shardlens_run(DIR), or shardlens_run = DIR in the ini file", pytrace=False)
    try:
        run = open_run(str(path))
        ranks = run.analysis["ranks"]
    except ShardlensError as error:
        pytest.fail(str(error), pytrace=False)
    run.baseline = marker.kwargs.get("baseline") if marker else None
    run.baseline = run.baseline or _chosen(request, "shardlens_baseline")
    if any(rank["comm_ns"] for rank in ranks):
        record_property("shardlens.hidden_fraction", float(run.hidden_fraction()))
    for rank in ranks:
        record_property(f"shardlens.rank{rank['rank']}.span_ns", rank["span_ns"])
        record_property(f"shardlens.rank{rank['rank']}.exposed_comm_ns", rank["exposed_comm_ns"])
        for device in rank["memory"]:
            if device["peak_allocated_bytes"] is not None:
                record_property(f"shardlens.rank{rank['rank']}.{device['device']}.peak_bytes", device["peak_allocated_bytes"])
    yield run
    for verdict in run.verdicts:
        record_property("shardlens.check", verdict.verdict)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """A count of gathers that differs comes with the collectives that cost most."""
    from .run import Count

    counts = [each for each in (left, right) if isinstance(each, Count)]
    return [f"{left!r} {op} {right!r}", *(f"exposed most: {each.worst}" for each in counts if each.worst)] if counts else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds to a failure what pytest's own message shortens: the verdicts, and the collectives that are exposed most."""
    report = yield
    run = getattr(item, "funcargs", {}).get("shardlens_run")
    add_section = getattr(report.longrepr, "addsection", None)  # not every kind of message has it
    if report.when == "call" and report.failed and run is not None and add_section is not None:
        lines = [f"check: {verdict.words()}" for verdict in run.verdicts if not verdict]
        lines += [shown(d["message"]) for d in run.analysis["diagnostics"] if "FSDP's hooks did not run" in d["message"]]
        lines.append(f"exposed most: {run.worst() or 'nothing'}")
        lines += [f"{row['cause']}: {row['explanation']}" for row in run.causes()]
        add_section("shardlens", "\n".join(lines))
    return report
