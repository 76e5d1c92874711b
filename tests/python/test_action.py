"""The GitHub Action .github/actions/shardlens-check: its steps, run as GitHub runs them, with `shardlens` of this build on PATH."""
import os
import re
import subprocess
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

ACTION = Path(__file__).resolve().parents[2] / ".github" / "actions" / "shardlens-check"


def run_action(tmp_path, program=True, **inputs):
    """Runs the steps with these inputs; '_' in their names is '-'. Returns exit code, log, outputs and summary."""
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    given = {name: str(entry.get("default", "")) for name, entry in action["inputs"].items()}
    given |= {name.replace("_", "-"): value for name, value in inputs.items()}
    assert set(given) == set(action["inputs"]) and all(given[name] for name, entry in action["inputs"].items() if entry.get("required"))
    (tmp_path / "bin").mkdir(exist_ok=True)
    if program and not (tmp_path / "bin" / "shardlens").exists():
        (tmp_path / "bin" / "shardlens").symlink_to(os.environ["SHARDLENS_PROGRAM"])
    output, summary = tmp_path / "output", tmp_path / "summary"
    output.write_text("")
    summary.write_text("")

    def filled(text):
        text = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: given[match.group(1)], text)
        text = text.replace("${{ github.action_path }}", str(ACTION))
        assert "${{" not in text
        return text

    log, code = "", 0
    for step in action["runs"]["steps"]:
        if step.get("if") == "${{ inputs.wheel != '' }}" and not given["wheel"]:
            continue
        env = {key: filled(value) for key, value in step["env"].items()}
        env |= {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}
        (tmp_path / "step.sh").write_text(filled(step["run"]))
        done = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", tmp_path / "step.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        log, code = log + done.stdout + done.stderr, done.returncode
        if code:
            break
    return code, log, dict(line.split("=", 1) for line in output.read_text().splitlines()), summary.read_text()


def test_a_run_like_its_baseline_passes(tmp_path, traces):
    code, log, outputs, summary = run_action(tmp_path, baseline=f"{traces}/fsdp2-reshard", traces=f"{traces}/fsdp2-reshard\n", thresholds="structure\n")
    assert (code, outputs) == (0, {"verdict": "pass"}), log
    assert "::error" not in log and "pass" in summary
    assert [case.find("failure") for case in xml.parse(tmp_path / "shardlens-check.xml").iter("testcase")] == [None]


def test_a_regression_fails_with_what_changed(tmp_path, traces):
    code, log, outputs, summary = run_action(
        tmp_path, baseline=f"{traces}/fsdp2-no-reshar?\n", traces=f"{traces}/fsdp2-reshard", thresholds="structure", junit="out/report.xml")
    assert (code, outputs) == (1, {"verdict": "regression"}), log
    assert "::error title=shardlens check::regression: the structure changed" in log
    assert "all_gather_backward" in summary
    assert any(case.find("failure") is not None for case in xml.parse(tmp_path / "out" / "report.xml").iter("testcase"))


def test_spaces_around_a_line_do_not_matter(tmp_path, traces):
    """A block of YAML keeps those that are more than the first line has."""
    code, log, outputs, _ = run_action(
        tmp_path, baseline=f"{traces}/fsdp2-reshard", traces=f"  {traces}/fsdp2-reshar?  ", thresholds="structure\n  peak_memory:5%\n", inconclusive_is="pass")
    assert "::error" not in log, log
    assert code == 0 and outputs["verdict"] in ("pass", "inconclusive"), log


def test_no_traces_are_refused(tmp_path, traces):
    code, log, outputs, _ = run_action(tmp_path, baseline=f"{traces}/fsdp2-reshard", traces=" \n")
    assert (code, outputs) == (2, {"verdict": "error"}), log
    assert "::error title=shardlens check::the input 'traces' is empty; expected the runs that an earlier step recorded" in log


def test_too_few_runs_are_inconclusive(tmp_path, traces):
    same = f"{traces}/fsdp2-reshard"
    code, log, outputs, _ = run_action(tmp_path, baseline=same, traces=same, thresholds="step_time:3%\nstructure")
    assert (code, outputs) == (5, {"verdict": "inconclusive"}), log
    code, log, outputs, _ = run_action(tmp_path, baseline=same, traces=same, thresholds="step_time:3%", inconclusive_is="pass")
    assert (code, outputs) == (0, {"verdict": "inconclusive"}), log


def test_peak_memory_gates_without_a_baseline(tmp_path, traces):
    code, log, outputs, _ = run_action(tmp_path, traces=f"{traces}/fsdp2-memory", max_peak_memory="5MiB")
    assert (code, outputs) == (0, {"verdict": "pass"}), log
    code, log, outputs, summary = run_action(tmp_path, traces=f"{traces}/fsdp2-memory", max_peak_memory="4MiB")
    assert (code, outputs) == (1, {"verdict": "regression"}) and "| rank 0, cpu |" in summary, log
    assert [case.get("name") for case in xml.parse(tmp_path / "shardlens-check.xml").iter("testcase")] == ["peak_memory"]


def test_wrong_inputs_are_errors_that_say_so(tmp_path, traces):
    code, log, outputs, _ = run_action(tmp_path, baseline="none.json", traces=f"{traces}/fsdp2-reshard")
    assert (code, outputs) == (3, {"verdict": "error"}) and "none.json" in log
    code, log, outputs, _ = run_action(tmp_path, baseline=f"{traces}/fsdp2-reshard", traces=f"{traces}/fsdp2-reshard", thresholds="speed")
    assert (code, outputs) == (2, {"verdict": "error"}) and "speed" in log


def test_without_the_program_the_input_wheel_is_named(tmp_path, traces):
    code, log, outputs, _ = run_action(tmp_path, program=False, baseline="a", traces="b")
    assert (code, outputs) == (2, {"verdict": "error"}) and "'wheel'" in log


def test_a_wheel_is_installed_by_pip(tmp_path, traces):
    """A python3 that only notes its arguments: the wheel itself is tested by tests/python/wheel."""
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "python3"
    stub.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/installed\n')
    stub.chmod(0o755)
    wheel = "dist/shardlens-0.1.0.whl"
    code, log, _, _ = run_action(tmp_path, baseline=f"{traces}/fsdp2-reshard", traces=f"{traces}/fsdp2-reshard", thresholds="structure", wheel=wheel)
    assert code == 0, log
    installed = (tmp_path / "installed").read_text()
    assert installed == f"-m pip install --disable-pip-version-check {wheel}\n"
    # A version would be looked for in an index, where there is none.
    code, log, _, _ = run_action(tmp_path, baseline="a", traces="b", wheel="0.1.0")
    assert code == 2 and "the input 'wheel' is '0.1.0'" in log
    assert (tmp_path / "installed").read_text() == installed
