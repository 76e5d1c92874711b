"""pytest's fixture `shardlens_run`: a recorded run to assert on.

    pytest --shardlens-run DIR [--shardlens-baseline PATH]

    def test_overlap(shardlens_run):
        assert shardlens_run.gathers("lm_head") == 1
        assert shardlens_run.hidden_fraction() >= 0.9
        assert shardlens_run.check(against="baseline.json")

DIR may contain several run directories: check() then compares all of them, which it needs for a verdict about times (`shardlens docs ci`).

A test may name its own run: @pytest.mark.shardlens_run("out/run", baseline="baseline.json"). The figures, and the verdicts of check(), are
properties of the test in pytest's JUnit file.
"""
import pytest

from .shown import shown


def pytest_addoption(parser):
    group = parser.getgroup("shardlens")
    group.addoption("--shardlens-run", metavar="DIR", help="the run directory, or traces, of the fixture shardlens_run")
    group.addoption("--shardlens-baseline", metavar="PATH", help="what shardlens_run.check() compares with if it is not told")
    parser.addini("shardlens_run", "the run directory of the fixture shardlens_run")
    parser.addini("shardlens_baseline", "what shardlens_run.check() compares with if it is not told")


def pytest_configure(config):
    config.addinivalue_line("markers", "shardlens_run(path, baseline=None): the recorded run that the fixture shardlens_run opens")


def _chosen(request, name):
    return request.config.getoption(f"--{name.replace('_', '-')}") or request.config.getini(name) or None


@pytest.fixture
def shardlens_run(request, record_property):
    """The run of the test's marker, of --shardlens-run, or of the ini file's shardlens_run."""
    from .run import open as open_run

    marker = request.node.get_closest_marker("shardlens_run")
    path = marker.args[0] if marker else _chosen(request, "shardlens_run")
    if path is None:
        pytest.fail("shardlens_run needs a run: pytest --shardlens-run DIR, @pytest.mark.shardlens_run(DIR), or shardlens_run = DIR in the ini file", pytrace=False)
    run = open_run(path)
    run.baseline = marker.kwargs.get("baseline") if marker else None
    run.baseline = run.baseline or _chosen(request, "shardlens_baseline")
    if any(rank["comm_ns"] for rank in run.analysis["ranks"]):
        record_property("shardlens.hidden_fraction", float(run.hidden_fraction()))
    for rank in run.analysis["ranks"]:
        for figure in ("span_ns", "exposed_comm_ns"):
            record_property(f"shardlens.rank{rank['rank']}.{figure}", rank[figure])
    yield run
    for verdict in run.verdicts:
        record_property("shardlens.check", verdict.verdict)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Adds to a failure what pytest's own message shortens: the verdicts, and the collectives that are exposed most."""
    report = yield
    run = getattr(item, "funcargs", {}).get("shardlens_run")
    if report.when == "call" and report.failed and run is not None and hasattr(report.longrepr, "addsection"):
        lines = [f"check: {verdict.words()}" for verdict in run.verdicts if not verdict]
        lines += [shown(d["message"]) for d in run.analysis["diagnostics"] if "FSDP's hooks did not run" in d["message"]]
        report.longrepr.addsection("shardlens", "\n".join([*lines, f"exposed most: {run.worst() or 'nothing'}"]))
    return report
