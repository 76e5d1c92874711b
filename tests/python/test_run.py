"""shardlens.open on recorded traces of PyTorch: two ranks, two blocks, two steps."""
import gzip
import json

import pytest

import shardlens
from shardlens.causes import Cause


@pytest.fixture(scope="module")
def run(traces):
    return shardlens.open(traces / "fsdp2-default")


def test_rows_have_a_step_for_each_rank(run):
    assert [(row["rank"], row["step"]) for row in run.steps()] == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert all(row["compute_ns"] + row["exposed_comm_ns"] + row["exposed_copy_ns"] + row["idle_ns"] == row["span_ns"] for row in run.steps())


def test_blocks_are_gathered_twice_and_the_root_once(run):
    """Blocks are freed after forward (reshard_after_forward None), the root is kept."""
    assert run.gathers("model.layers.0") == 2
    assert run.gathers("model.layers.1", rank=1) == 2
    assert run.gathers("") == run.gathers("(root)") == 1
    assert [str(run.gathers("")), repr(run.gathers("")), f"{run.gathers('')}", "%s" % run.gathers("")] == ["1"] * 4


def test_a_plan_that_keeps_parameters_gathers_once(traces):
    assert shardlens.open(traces / "fsdp2-no-reshard").gathers("model.layers.0") == 1


def test_the_peak_is_that_of_the_traces_own_events(traces):
    (trace,) = (traces / "fsdp2-memory").glob("*.pt.trace.json*")
    events = json.loads((gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()))["traceEvents"]
    counts = [event["args"] for event in sorted(events, key=lambda event: event["ts"]) if event.get("name") == "[memory]"]
    found = counts[0]["Total Allocated"] - counts[0]["Bytes"]  # by the first event, of what came before the recording
    assert found == 1279336
    run = shardlens.open(traces / "fsdp2-memory")
    assert run.peak_bytes() == run.peak_bytes(rank=0) == max(count["Total Allocated"] for count in counts) - found
    with pytest.raises(ValueError, match=r"record\(memory=True\)"):
        shardlens.open(traces / "fsdp2-default").peak_bytes()


def test_an_unknown_unit_is_an_error_that_lists_the_units(run):
    with pytest.raises(ValueError, match="'model.layers.1'"):
        run.gathers("model.layers.9")
    with pytest.raises(ValueError, match="'model.layers.1'"):
        run.hidden_fraction("model.layers.9")


def test_collectives_sum_to_the_units(run):
    by_unit = {}
    for row in run.collectives():
        key = row["rank"], row["unit"], row["kind"]
        by_unit[key] = by_unit.get(key, 0) + row["exposed_ns"]
    for row in run.units():
        if row["collective"] == "reduce_scatter":
            assert by_unit[row["rank"], row["unit"], "reduce_scatter"] == row["exposed_ns"]
    assert sum(row["exposed_ns"] for row in run.causes()) == sum(by_unit.values())


def test_hidden_fraction_names_what_is_exposed(run):
    """One thread trains and communicates, so nothing is hidden."""
    fraction = run.hidden_fraction()
    assert fraction == 0.0
    assert " ms exposed, cause " in repr(fraction) and "(root)" in repr(fraction)


def test_a_cause_is_the_word_of_the_tables_with_its_explanation(run):
    (row,) = [row for row in run.causes() if row["cause"] == "host_waited"]
    assert row["cause"].words in run.summary()
    assert row["explanation"] == run.analysis["causes"]["host_waited"]
    assert {row["cause"] for row in run.units()} - {None} <= run.analysis["causes"].keys()


def test_a_former_name_of_a_cause_is_the_same_cause(run):
    """A test that names it must neither fail nor pass for another reason."""
    (cause,) = {row["cause"] for row in run.causes() if row["cause"] == "host_waited"}
    with pytest.deprecated_call(match="'host_is_compute' is now 'host_waited'"):
        assert cause == "host_is_compute"
    with pytest.deprecated_call():
        assert not cause != "host_is_compute"
    with pytest.deprecated_call():
        assert cause != "peer"
    assert Cause("late_host") == "host_late"  # from the JSON of an older program
    assert Cause("frozen_views") == "frozen_views" and cause is not None and cause != 1


def test_check_passes_against_itself_and_names_what_changed(traces):
    same = shardlens.open(traces / "fsdp2-reshard").check(against=traces / "fsdp2-reshard", metric="structure")
    assert same and same.verdict == "pass"
    changed = shardlens.open(traces / "fsdp2-reshard").check(against=traces / "fsdp2-no-reshard", metric="structure")
    assert not changed
    assert "all_gather_backward" in repr(changed)


def test_check_of_memory_needs_no_baseline(traces):
    run = shardlens.open(traces / "fsdp2-memory")
    assert run.check(max_peak_memory="5MiB")
    above = run.check(max_peak_memory="4MiB")
    assert not above and f"peak memory of rank 0 on cpu {run.peak_bytes()} bytes, {4 << 20} allowed" in repr(above)
    assert run.check(against=traces / "fsdp2-memory", metric=["structure", "peak_memory:0%"])


def test_simulate_takes_a_plan_as_a_path_or_a_dict(traces, tmp_path):
    run = shardlens.open(traces / "fsdp2-default")
    plan = {"version": 1, "layout": "per_parameter", "reshard_after_forward": False, "units": [{"modules": "model.layers.*"}, {"modules": ""}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    answer = run.simulate(plan)
    assert answer == run.simulate(tmp_path / "plan.json")
    assert answer["step_ns"] == answer["compute_ns"] + answer["exposed_comm_ns"] + answer["exposed_copy_ns"] + answer["idle_ns"]


def test_advise_predicts_changes_of_the_plan(traces):
    run = shardlens.open(traces / "fsdp2-default")
    advice = run.advise(top=2)
    assert advice == shardlens.advise(traces / "fsdp2-default", top=2)
    assert advice["schema"] == 1 and len(advice["changes"]) <= 2
    base = advice["baseline"]["simulated_step_ns"]
    for change in advice["changes"] + advice["others"]:
        low, high = change["interval_ns"]
        assert low <= change["change_ns"] <= high and change["change_ns"] == change["step_ns"] - base
        settings = {"batch": change["run"]["batch"], "accumulate": change["run"]["accumulate"], "no_sync": not change["run"]["sync_every_microbatch"]}
        assert run.simulate(change["plan"], **settings)["step_ns"] == change["step_ns"]


def test_messages_are_the_programs(tmp_path):
    with pytest.raises(shardlens.ShardlensError, match="no such file") as missing:
        shardlens.open(tmp_path / "none")
    assert missing.value.exit_code == 3
    with pytest.raises(shardlens.ShardlensError, match="contains no trace") as empty:
        shardlens.open(tmp_path).units()
    assert empty.value.exit_code == 3


def test_a_program_that_a_signal_ends_is_named_with_it(traces, tmp_path, monkeypatch):
    stub = tmp_path / "stub"
    monkeypatch.setenv("SHARDLENS_PROGRAM", str(stub))
    for script, words in (("echo reading; echo line 1 >&2; echo line 2 >&2; kill -SEGV $$", ["signal 11 (SIGSEGV)", "it printed last: line 2"]),
                          ("kill -KILL $$", ["signal 9 (SIGKILL)", "it printed nothing"])):
        stub.write_text(f"#!/bin/sh\n{script}\n")
        stub.chmod(0o755)
        with pytest.raises(shardlens.ShardlensError) as ended:
            shardlens.advise(traces / "fsdp2-default")
        assert str(ended.value).startswith("shardlens advise was ended by signal")
        assert all(each in str(ended.value) for each in words)
        assert ended.value.exit_code in (-11, -9)


def test_rows_become_a_table(run):
    pandas = pytest.importorskip("pandas")
    table = run.units().to_pandas()
    assert isinstance(table, pandas.DataFrame) and list(table["unit"].unique()) == ["", "model.layers.0", "model.layers.1"]
    assert "(root)" in run._repr_html_()


def write_trace(directory, events):
    """A trace of one rank on Gloo, without communication unless `events` has some."""
    directory.mkdir()
    trace = {"schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 1}, "traceEvents": [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur} for cat, name, ts, dur in events]}
    (directory / "rank0.json").write_text(json.dumps(trace))
    return shardlens.open(directory)


def test_no_communication_has_no_hidden_fraction(tmp_path):
    run = write_trace(tmp_path / "run", [("cpu_op", "aten::mm", 0, 50)])
    with pytest.raises(ValueError, match="no communication in the recorded steps"):
        run.hidden_fraction()


def test_a_trace_without_kernels_says_so(tmp_path):
    run = write_trace(tmp_path / "run", [("cpu_op", "aten::mm", 0, 50), ("user_annotation", "nccl:all_reduce", 10, 5)])
    with pytest.raises(ValueError, match="no kernels, although NCCL ran"):
        run.hidden_fraction()


def test_empty_tables_keep_their_columns(tmp_path):
    run = write_trace(tmp_path / "run", [("cpu_op", "aten::mm", 0, 50)])
    columns = {
        "units": ["rank", "unit", "collective", "count", "bytes", "busy_ns", "exposed_ns", "lead_ns", "cause", "issued_by"],
        "causes": ["cause", "exposed_ns", "count", "explanation"],
        "order": ["rank", "steps", "index", "what", "unit", "section", "by", "hook_unit"],
    }
    for table, expected in columns.items():
        rows = getattr(run, table)()
        assert rows == [] and rows.columns == expected
    assert run.steps() == [] and run.steps().columns[:2] == ["rank", "step"]
    assert run.collectives() == [] and "exposed_ns" in run.collectives().columns


def test_units_have_the_columns_that_empty_tables_have(run):
    rows = run.units()
    assert [set(row) for row in rows] == [set(rows.columns)] * len(rows)
