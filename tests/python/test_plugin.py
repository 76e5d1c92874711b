"""pytest's fixture `shardlens_run`, in a pytest of its own."""
import subprocess
import sys
import xml.etree.ElementTree as xml

from shardlens.program import ask


def pytest_of(tmp_path, test, *options):
    (tmp_path / "test_it.py").write_text(test)
    report = tmp_path / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "shardlens.pytest_plugin", f"--junitxml={report}", *options, "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300)
    return done, report


def test_passing_assertions_leave_properties(tmp_path, traces):
    done, report = pytest_of(
        tmp_path, "def test_run(shardlens_run):\n    assert shardlens_run.gathers('model.layers.0') == 2\n    assert shardlens_run.check(metric='structure')\n",
        "--shardlens-run", str(traces / "fsdp2-default"), "--shardlens-baseline", str(traces / "fsdp2-default"))
    assert done.returncode == 0, done.stdout
    properties = {p.get("name"): p.get("value") for p in xml.parse(report).iter("property")}
    assert properties["shardlens.hidden_fraction"] == "0.0"
    assert int(properties["shardlens.rank0.exposed_comm_ns"]) == 42508449
    assert int(properties["shardlens.rank0.span_ns"]) == ask(["analyze", traces / "fsdp2-default"])["ranks"][0]["span_ns"]
    assert properties["shardlens.check"] == "pass"


def test_peak_memory_is_a_property(tmp_path, traces):
    done, report = pytest_of(
        tmp_path, "def test_run(shardlens_run):\n    assert shardlens_run.check(max_peak_memory='5MiB')\n", "--shardlens-run", str(traces / "fsdp2-memory"))
    assert done.returncode == 0, done.stdout
    assert {p.get("name"): p.get("value") for p in xml.parse(report).iter("property")}["shardlens.rank0.cpu.peak_bytes"] == "4940296"


def test_failures_name_unit_cause_and_milliseconds(tmp_path, traces):
    done, _ = pytest_of(tmp_path, "def test_run(shardlens_run):\n    assert shardlens_run.hidden_fraction() >= 0.9\n", "--shardlens-run", str(traces / "fsdp2-default"))
    assert done.returncode == 1
    assert "(root)" in done.stdout and " ms exposed, cause " in done.stdout


def test_a_wrong_count_says_what_it_costs(tmp_path, traces):
    done, _ = pytest_of(tmp_path, "def test_run(shardlens_run):\n    assert shardlens_run.gathers('model.layers.0') == 1\n", "--shardlens-run", str(traces / "fsdp2-default"))
    assert done.returncode == 1
    assert "all_gather_forward of model.layers.0 on rank 0: 6.656 ms exposed, cause host_waited" in done.stdout
    assert "host_waited: on the CPU the host computes, and it waited for this\n" in done.stdout


def test_a_directory_of_runs_is_checked_as_a_whole(tmp_path, traces):
    """Also: a marker names runs and baseline, and what a verdict says is not shortened."""
    for name in ("b-first", "c-other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        for file in (traces / "fsdp2-reshard").iterdir():
            (tmp_path / "runs" / name / file.name).symlink_to(file)
    test = (
        "import pytest\n"
        f"@pytest.mark.shardlens_run({str(tmp_path / 'runs')!r}, baseline={str(traces / 'fsdp2-no-reshard')!r})\n"
        "def test_run(shardlens_run):\n"
        "    assert shardlens_run.paths[0].name == 'b-first'\n"
        "    verdict = shardlens_run.check(metric='structure')\n"
        "    assert verdict.details['runs']['candidate'] == 2\n"
        "    assert verdict\n")
    done, report = pytest_of(tmp_path, test)
    assert done.returncode == 1
    assert "check: regression; count of (root): 1 × all_gather_backward" in done.stdout
    assert "check: regression; count of (root): 1 × all_gather_backward" in xml.parse(report).find(".//failure").text


def test_a_regression_names_what_changed(tmp_path, traces):
    done, _ = pytest_of(
        tmp_path, "def test_run(shardlens_run):\n    assert shardlens_run.check(metric='structure')\n",
        "--shardlens-run", str(traces / "fsdp2-reshard"), "--shardlens-baseline", str(traces / "fsdp2-no-reshard"))
    assert done.returncode == 1
    assert "all_gather_backward" in done.stdout


def test_a_marker_names_the_run_and_no_run_is_an_error(tmp_path, traces):
    done, _ = pytest_of(
        tmp_path, f"import pytest\n@pytest.mark.shardlens_run({str(traces / 'fsdp2-default')!r})\ndef test_run(shardlens_run):\n    assert shardlens_run.steps()\n")
    assert done.returncode == 0, done.stdout
    done, _ = pytest_of(tmp_path, "def test_run(shardlens_run):\n    pass\n")
    assert done.returncode == 1 and "--shardlens-run DIR" in done.stdout


def test_errors_of_the_program_have_no_traceback_of_the_plugin(tmp_path, traces):
    missing = "import pytest\n@pytest.mark.shardlens_run('none')\ndef test_run(shardlens_run):\n    pass\n"
    unnamed = missing.replace("'none'", "")
    unknown = "def test_run(shardlens_run):\n    shardlens_run.gathers('nothing')\n"
    for test, words in ((missing, "none: no such file or directory"), (unnamed, "expected a run, such as @pytest.mark.shardlens_run("),
                        (unknown, "rank 0 has no collective of a unit 'nothing'; its units: ")):
        done, _ = pytest_of(tmp_path, test, "--shardlens-run", str(traces / "fsdp2-default"))
        assert done.returncode == 1 and words in done.stdout, done.stdout
        assert "pytest_plugin.py" not in done.stdout and "run.py" not in done.stdout, done.stdout
