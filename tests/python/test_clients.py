"""shardlens.clients with the real transformers, Lightning and loops on two Gloo ranks, and shardlens.watch in steps that are also recorded (client_training.py)."""
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import shardlens
import shardlens.program

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))
import own_time  # noqa: E402

STEPS, WATCHED = (3, 4, 5), 4  # eager programs have settled after two steps, and the profiler needs one to start
LAYERS = {"trainer": "model.layers", "lightning": "1.layers", "fsdp2": "layers", "fsdp1": "layers"}
CASES = tuple(LAYERS)
FSDP = ("gather_parameters", "reduce_gradients")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    missing = [package for package in ("transformers", "accelerate", "lightning") if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}")
    out = tmp_path_factory.mktemp("clients")
    done = subprocess.run([sys.executable, Path(__file__).with_name("client_training.py"), out, *CASES, "wide"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def found(trained, case, rank=0):
    return json.loads((trained / f"{case}.rank{rank}.json").read_text())


@pytest.mark.parametrize("case", CASES)
def test_losses_are_the_same_to_the_bit(trained, case):
    for rank in (0, 1):
        losses = found(trained, case, rank)
        assert losses["recorded"] == losses["plain"] and len(losses["plain"]) >= 7
        assert losses["warnings"] == []


@pytest.mark.parametrize("case", CASES)
def test_recording_begins_when_the_program_has_settled_and_ends_by_itself(trained, case):
    assert {row["step"] for row in shardlens.open(trained / case).steps()} == set(STEPS)
    assert len((trained / case / "metrics.jsonl").read_text().splitlines()) == STEPS[-1] + 1


@pytest.mark.parametrize("case", CASES)
def test_plan_units_and_settings_are_those_of_the_program(trained, case):
    plan = json.loads((trained / case / "plan.json").read_text())
    units = {str(unit["modules"]) for unit in plan["units"]}
    layers = {f"{LAYERS[case]}.{i}" for i in range(3)}
    others = {"trainer": {"model.embed_tokens", "['model.norm', 'lm_head']"}}.get(case, {""})
    assert units == layers | others
    assert plan["mesh"] == {"replicate": 1, "shard": 2}
    run = json.loads((trained / case / "run.json").read_text())
    settings = run["step_settings"]
    assert settings["accumulate"] == 2 and settings["sync_every_microbatch"] is (case != "trainer")
    assert (settings["batch"], settings["seq"]) == {"trainer": (2, 32), "lightning": (2, 32)}.get(case, (4, 6))
    assert run["notes"] == []


@pytest.mark.parametrize("case", [case for case in CASES if case != "fsdp1"])
def test_the_issued_order_is_the_planned_one(trained, case):
    for rank in shardlens.open(trained / case).analysis["ranks"]:
        assert rank["order"]["planned_vs_issued"]["first_difference"] is None


@pytest.mark.parametrize("case", CASES)
def test_a_watched_step_has_the_counts_of_its_recording(trained, case):
    run = shardlens.open(trained / case)
    recorded = run.analysis["ranks"][0]["communication"]
    for rank in (0, 1):
        seen = found(trained, case, rank)["watched"]
        assert seen["step"] == WATCHED and seen["unseen"] is None
        assert seen["collectives"] * len(STEPS) == sum(row["count"] for row in recorded if row["purpose"] in FSDP)
        assert list(seen["groups"]) == ["default_pg"] and seen["groups"]["default_pg"]["count"] == seen["collectives"]
        if case != "fsdp1":  # FSDP1's ranges have no names
            assert seen["gathers"] == {unit: run.gathers(unit, rank) for unit in seen["gathers"]} and len(seen["gathers"]) > 3
        actions = [json.loads(line) for line in (trained / case / f"rank{rank}.actions.jsonl").read_text().splitlines()]
        assert seen["gathers"] == Counter(row["unit"] for row in actions if row.get("op") == "all_gather" and row["step"] == WATCHED)


@pytest.mark.parametrize("case", [case for case in CASES if case != "fsdp1"])
def test_times_of_a_watched_step_are_those_of_its_recording(trained, case):
    """A call of the watch lies within the recorded call of FSDP, and its step within the recorded step. What c10d records of a call ends on another thread, maybe after it."""
    metrics = [json.loads(line) for line in (trained / case / "metrics.jsonl").read_text().splitlines()]
    for rank in (0, 1):
        seen = found(trained, case, rank)["watched"]
        actions = [json.loads(line) for line in (trained / case / f"rank{rank}.actions.jsonl").read_text().splitlines()]
        around = sum(row["end_ns"] - row["t_ns"] for row in actions if row["step"] == WATCHED and row.get("op") in ("all_gather", "reduce_scatter"))
        assert 0 < seen["busy_ns"] <= around * 1.001 + 100_000
        assert seen["exposed_ns"] == seen["busy_ns"] and seen["hidden"] == 0, "Gloo's calls block the host"
        if rank == 0:
            assert seen["busy_ns"] <= seen["step_ns"] <= metrics[WATCHED]["step_ms"] * 1e6 + 1


@pytest.mark.parametrize("case", [case for case in CASES if case != "fsdp1"])
def test_nothing_is_wrapped_in_other_steps(trained, case):
    """After the recording, and in steps that are not watched, only the session is told that a step has ended."""
    for rank in (0, 1):
        steps = [own_time.Step(**step) for step in found(trained, case, rank)["steps"]]
        assert [step.kind for step in steps] == ["other", "other", "recorded", "both", "last", "other"]
        assert steps[-1].calls == 1 and steps[2].calls > 50 and steps[3].calls > steps[2].calls


def test_hooks_and_wrappers_take_at_most_half_a_percent_of_a_step(trained):
    """Of its CPU time, by the clock of the thread. The least of both ranks: Python may collect garbage in any."""
    steps = [own_time.Step(**step) for rank in (0, 1) for step in found(trained, "wide", rank)["steps"]]
    least = {kind: min(step.own for step in steps if step.kind == kind) for kind in ("other", "recorded", "watched")}
    limit = 0.005 * min(step.seconds for step in steps if step.kind == "other")
    assert 0 < least["recorded"] <= limit
    assert least["watched"] <= limit and least["other"] <= limit


@pytest.mark.parametrize("case", CASES)
def test_rank_0_tells_it_in_one_line(trained, case):
    seen = found(trained, case)
    (line,) = seen["lines"]
    assert line.startswith(f"shardlens: step {WATCHED}: ") and "peak memory" in line and "others waited for rank" in line
    assert f"group default_pg: {seen['watched']['collectives']} collectives" in line and "gathers a unit: " in line
    assert found(trained, case, 1)["lines"] == []


def test_the_page_from_pip_to_gate_does_what_it_says(trained, tmp_path, monkeypatch):
    """Its commands as a reader types them. The recording is the one above: torchrun is a script that copies it."""
    root = Path(__file__).resolve().parents[2]
    monkeypatch.syspath_prepend(str(root / "tests" / "tools"))
    import document_commands

    scripts = {
        "torchrun": f'test -f "$3" && mkdir -p "$(dirname "$4")" && cp -r {trained / "trainer"} "$4"',
        "pytest": f'exec {sys.executable} -m pytest -p no:cacheprovider "$@"',
        "shardlens": f'exec {shardlens.program.path()} "$@"'}
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ran, _, failures = document_commands.run(root / "docs" / "use" / "gate-ci.md", Path(shardlens.program.path()).parent, {"pytorch"})
    assert (ran > 4, failures) == (True, [])  # pip install is left to tests/tools/follow_page.py


def test_a_missing_package_is_named():
    program = (
        "import sys\n"
        "sys.modules['lightning'] = None\n"
        "from shardlens.clients import record_loop\n"
        "from shardlens.clients import LightningCallback\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: shardlens.clients.LightningCallback needs the package lightning: pip install lightning"


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({}, ValueError, "give a directory to record into, watch=N"),
    ({"directory": "run", "watch": 0}, ValueError, "watch=0, expected a number of steps"),
    ({"directory": "run", "steps": 0}, ValueError, "steps=0, warmup=None: expected at least 1"),
    ({"directory": "run", "stpes": 3}, TypeError, "unexpected argument 'stpes': expected accumulate, memory, stacks, force"),
    ({"watch": 10, "memory": True}, TypeError, "unexpected argument 'memory': it is for recordings, and there is no directory"),
])
def test_wrong_arguments_are_refused_when_the_session_is_made(arguments, error, message):
    """And not when the trainer has loaded its model."""
    from shardlens.clients import Session

    with pytest.raises(error, match=message):
        Session(**arguments)
