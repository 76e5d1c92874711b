"""shardlens.record on PyTorch's FSDP2, FSDP1 and DDP: two Gloo ranks, three blocks, two microbatches a step (recorded_training.py)."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

import shardlens
from shardlens.program import ask

SHARDED = ("fsdp2", "fsdp2-prefetch", "fsdp2-bf16", "fsdp2-group", "fsdp1")
CASES = (*SHARDED, "ddp")


def actions(run, rank=0):
    return [json.loads(line) for line in (run / f"rank{rank}.actions.jsonl").read_text().splitlines()]


def collectives(run):
    """(op, unit, cause) of the first recorded step's first microbatch."""
    rows = actions(run)
    step = [row for row in rows if row["step"] == rows[0]["step"] and row.get("op") in ("all_gather", "reduce_scatter", "all_reduce")]
    assert len(step) % 2 == 0
    first, second = step[: len(step) // 2], step[len(step) // 2:]
    short = [[(row["op"], row["unit"], row["cause"]) for row in half] for half in (first, second)]
    assert short[0] == short[1], "both microbatches do the same"
    return short[0]


@pytest.mark.parametrize("case", CASES)
def test_losses_are_the_same_to_the_bit(recorded, case):
    losses = json.loads((recorded / f"{case}.losses.json").read_text())
    assert losses["recorded"] == losses["plain"]
    assert losses["warnings"] == []
    assert losses["left_over"] == [], "the model has its own methods again"


@pytest.mark.parametrize("case", ["broken", "broken-inside"])
def test_a_fault_in_the_recorder_leaves_training_as_it_was(recorded, case):
    losses = json.loads((recorded / f"{case}.losses.json").read_text())
    assert losses["recorded"] == losses["plain"]
    assert losses["left_over"] == []
    assert len(losses["warnings"]) == 1 and "training goes on: ZeroDivisionError" in losses["warnings"][0]


def test_fsdp2_actions_are_in_the_order_of_the_schedule(recorded):
    """Worked by hand: blocks are gathered for forward and again for backward, each prefetched by the unit after it; the root is kept between them."""
    layers = ["layers.0", "layers.1", "layers.2"]
    assert collectives(recorded / "fsdp2") == (
        [("all_gather", unit, "own") for unit in ["", *layers]]
        + [("all_gather", "layers.2", "backward_prefetch"), ("all_gather", "layers.1", "backward_prefetch"), ("reduce_scatter", "layers.2", "own"),
           ("all_gather", "layers.0", "backward_prefetch"), ("reduce_scatter", "layers.1", "own"), ("reduce_scatter", "layers.0", "own"),
           ("reduce_scatter", "", "own")])


def test_lists_of_prefetches_are_explicit(recorded):
    """layers.0 prefetches both others in forward; in backward layers.2, which has a list, prefetches both at once."""
    found = collectives(recorded / "fsdp2-prefetch")
    assert ("all_gather", "layers.1", "explicit_prefetch") in found[:4] and ("all_gather", "layers.2", "explicit_prefetch") in found[:4]
    backward = found[next(i for i, row in enumerate(found) if row[2] == "backward_prefetch"):]
    assert ("all_gather", "layers.1", "explicit_prefetch") in backward and ("all_gather", "layers.0", "explicit_prefetch") in backward


def test_units_that_keep_their_parameters_are_gathered_once(recorded):
    """reshard_after_forward false: a gather for each unit in forward, none in backward."""
    assert [row for row in collectives(recorded / "fsdp2-bf16") if row[0] == "all_gather"] == [
        ("all_gather", unit, "own") for unit in ("", "layers.0", "layers.1", "layers.2")]


def test_modules_sharded_together_are_one_unit(recorded):
    assert {row[1] for row in collectives(recorded / "fsdp2-group")} == {"", "layers.0, layers.1"}


@pytest.mark.parametrize("case", [case for case in SHARDED if case.startswith("fsdp2")])
def test_actions_and_trace_have_one_clock(recorded, case):
    """Each all-gather's range in the trace lies within the action that issued it."""
    import gzip

    run = recorded / case
    with gzip.open(run / "rank0.pt.trace.json.gz") as file:
        trace = json.load(file)
    base = trace.get("baseTimeNanoseconds", 0)
    ranges = sorted((base + e["ts"] * 1e3, base + (e["ts"] + e["dur"]) * 1e3) for e in trace["traceEvents"]
                    if e.get("cat") == "user_annotation" and (e["name"] + " (").startswith("FSDP::all_gather ("))
    calls = [(row["t_ns"], row["end_ns"]) for row in actions(run) if row.get("op") == "all_gather"]
    assert len(ranges) == len(calls) > 0
    slack = 2e7  # 20 ms: the profiler converts the processor's counter, and another clock would be off by seconds or more
    for (began, ended), (start, end) in zip(ranges, calls):
        assert start - slack <= began and ended <= end + slack


def test_every_action_names_its_hook(recorded):
    rows = actions(recorded / "fsdp2")
    hooks = {row["seq"]: row for row in rows if "hook" in row}
    for row in rows:
        if "op" in row:
            hook = hooks[row["hook_seq"]]
            assert hook["t_ns"] <= row["t_ns"] and row["end_ns"] <= hook["end_ns"]
    assert [row["seq"] for row in rows if "op" in row] == list(range(1, sum("op" in row for row in rows) + 1))


def plan_of(recorded, case):
    return json.loads((recorded / case / "plan.json").read_text())


def test_plans_are_read_from_the_objects(recorded):
    plan = plan_of(recorded, "fsdp2")
    assert plan["dialect"] == "fsdp2" and plan["layout"] == "per_parameter" and plan["mesh"] == {"replicate": 1, "shard": 2}
    assert {unit["modules"]: unit["reshard_after_forward"] for unit in plan["units"]} == {
        "": False, "layers.0": True, "layers.1": True, "layers.2": True}
    plan = plan_of(recorded, "fsdp2-prefetch")
    assert plan["forward_prefetch"] == {"layers.0": ["layers.1", "layers.2"]}
    assert plan["backward_prefetch"] == {"layers.2": ["layers.1", "layers.0"]}
    assert plan_of(recorded, "fsdp2-bf16")["mixed_precision"] == {
        "param_dtype": "bf16", "reduce_dtype": "fp32", "output_dtype": None, "cast_forward_inputs": True}
    assert plan_of(recorded, "fsdp2-bf16")["reshard_after_forward"] is False
    assert [unit["modules"] for unit in plan_of(recorded, "fsdp2-group")["units"]] == ["", ["layers.0", "layers.1"]]
    plan = plan_of(recorded, "fsdp1")
    assert plan["dialect"] == "fsdp1" and plan["backward_prefetch"] == "pre" and plan["reshard_after_forward"] is True
    assert [unit["modules"] for unit in plan["units"]] == ["", "layers.0", "layers.1", "layers.2"]
    plan = plan_of(recorded, "ddp")
    assert plan["units"] == [{"modules": "", "api": "replicate"}] and plan["gradient_as_bucket_view"] is True
    assert plan["bucket_cap_mb"] == pytest.approx(0.001, abs=1e-6)


def test_settings_of_single_backwards_are_in_the_plan(recorded):
    """As in a step whose microbatches but the last keep their parameters: the model's attribute is true again at the end."""
    assert plan_of(recorded, "kept-once")["reshard_after_backward"] is False
    assert plan_of(recorded, "fsdp2")["reshard_after_backward"] is True


@pytest.mark.parametrize("case", CASES)
def test_the_model_file_has_the_whole_shapes(recorded, case):
    """Whatever shards the model, names and shapes are those of the model before."""
    model = json.loads((recorded / case / "model.json").read_text())
    assert model["shardlens_model"] == 1 and model["name"] == "Model"
    shapes = {row["name"]: row["shape"] for row in model["parameters"]}
    blocks = {}
    for i in range(3):
        blocks |= {f"layers.{i}.fc1.weight": [16, 8], f"layers.{i}.fc1.bias": [16], f"layers.{i}.fc2.weight": [8, 16], f"layers.{i}.fc2.bias": [8]}
    assert {name: shape for name, shape in shapes.items() if name != "head.weight"} == {"embed.weight": [17, 8], "scale": [3], **blocks}
    assert {row["name"]: row.get("same_as") for row in model["parameters"]}.get("head.weight", "embed.weight") == "embed.weight"
    assert {row["fqn"]: row["class"] for row in model["modules"]}["layers.1"] == "Block"
    assert {row["fqn"]: row["forward"] for row in model["modules"]}["layers"] is False


@pytest.mark.parametrize("case", CASES)
def test_the_run_says_what_it_ran(recorded, case):
    run = json.loads((recorded / case / "run.json").read_text())
    assert run["schema"] == 2 and run["world_size"] == 2 and run["notes"] == []
    assert run["groups"][0]["ranks"] == [0, 1]
    assert run["step_settings"] == {"batch": 4, "seq": 6, "accumulate": 2, "sync_every_microbatch": True, "optimizer": "sgd", "momentum": 0.5}
    metrics = [json.loads(line) for line in (recorded / case / "metrics.jsonl").read_text().splitlines()]
    losses = json.loads((recorded / f"{case}.losses.json").read_text())["recorded"]
    assert [row["loss"] for row in metrics] == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_the_program_reads_the_run(recorded, case):
    run = shardlens.open(recorded / case)
    assert {row["step"] for row in run.steps()} == {2, 3}
    if case != "ddp":
        blocks = [row["unit"] for row in run.units() if row["unit"] != ""]  # FSDP1's ranges have no names
        unit = "layers.0, layers.1" if case == "fsdp2-group" else "layers.2" if case != "fsdp1" else blocks[0]
        assert run.gathers(unit) == (2 if case == "fsdp2-bf16" else 4)  # two microbatches


FSDP2 = [case for case in SHARDED if case.startswith("fsdp2")]


@pytest.mark.parametrize("case", FSDP2)
def test_the_program_owns_the_elements_that_fsdp2_gave_each_rank(recorded, case):
    """model.json and plan.json, written by the recorder and read by the program: DTensor's chunks, the uneven one of `scale` included."""
    run = recorded / case
    plan = ask(["plan", "--model", run / "model.json", "--plan", run / "plan.json", "--parameters"])
    owned = [{}, {}]
    for row in plan["parameters"]:
        for held in row["held"]:
            for rank in held["ranks"]:
                owned[rank][row["fqn"]] = owned[rank].get(row["fqn"], 0) + held["elements"][1] - held["elements"][0]
    for rank in (0, 1):
        shards = json.loads((recorded / f"{case}.shards{rank}.json").read_text())
        assert {name: count for name, count in shards.items() if count} == owned[rank]


@pytest.mark.parametrize("case", SHARDED)
def test_planned_order_is_what_fsdp_issued(recorded, case):
    analysis = shardlens.open(recorded / case).analysis
    assert [d["message"] for d in analysis["diagnostics"] if d["severity"] == "warning"] == []
    for rank in analysis["ranks"]:
        order = rank["order"]["planned_vs_issued"]
        assert order["first_difference"] is None and order["compared"] == 4 * len(collectives(recorded / case))


@pytest.mark.parametrize("case, unit, words", [
    ("fault-order", "layers.0", "all_gather (layers.1)"),
    ("fault-prefetch", "layers.1", "all_gather (layers.1) by the unit's own hook"),
    ("fault-twice", "layers.1", "all_gather (layers.1)")])
def test_planted_faults_are_found_and_named(recorded, case, unit, words):
    """Each fault is in the middle one of three recorded steps (recorded_training.py)."""
    for rank in shardlens.open(recorded / case).analysis["ranks"]:
        difference = rank["order"]["planned_vs_issued"]["first_difference"]
        assert difference["step"] == 3 and difference["found"] == words
        if case == "fault-twice":
            assert difference["counts"] == [{"collective": f"all_gather ({unit})", "expected": 2, "found": 3}]
        else:
            assert difference["counts"] == [] and f"({unit})" in difference["expected"]


@pytest.mark.parametrize("case", FSDP2)
def test_what_if_uses_every_step_and_hides_nothing_that_the_run_waited_for(recorded, case):
    own = shardlens.open(recorded / case).simulate()
    assert own["baseline"]["measured_step_ns"] > 0 and own["exposed_copy_ns"] > 0
    kept = shardlens.open(recorded / case).simulate(plan=dict(plan_of(recorded, case), units=[
        {**unit, "reshard_after_forward": False} for unit in plan_of(recorded, case)["units"]]))
    if case != "fsdp2-bf16":  # which keeps its parameters already
        assert kept["exposed_copy_ns"] < own["exposed_copy_ns"] and kept["step_ns"] < own["step_ns"]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        shardlens.record("unused", model=None, warmup=0)


def test_a_model_that_nothing_shards_is_recorded_without_a_plan(tmp_path):
    program = (
        "import shardlens, torch\n"
        "model = torch.nn.Linear(3, 2)\n"
        f"with shardlens.record({str(tmp_path)!r}, model=model, warmup=1, steps=1) as rec:\n"
        "    for _ in range(3):\n"
        "        model(torch.ones(4, 3)).sum().backward()\n"
        "        rec.step()\n")
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=300, capture_output=True, text=True)
    assert not (tmp_path / "plan.json").exists()
    run = json.loads((tmp_path / "run.json").read_text())
    assert "the model is not sharded" in run["notes"][0]
    assert run["activations"] and f"made the first step {run['activations_ms']:.1f} ms longer" in done.stderr
    assert run["step_settings"] == {"batch": 4, "seq": None, "accumulate": 1, "sync_every_microbatch": True}
    assert (tmp_path / "rank0.pt.trace.json.gz").exists()


def test_only_recordings_are_replaced(tmp_path):
    """A second recording replaces the first; files of others stay unless the caller forces it, and the program goes on."""
    program = (
        "import shardlens, torch\n"
        "model = torch.nn.Linear(3, 2)\n"
        f"with shardlens.record({str(tmp_path)!r}, model=model, warmup=1, steps=1, force=FORCE) as rec:\n"
        "    for _ in range(3):\n"
        "        model(torch.ones(4, 3)).sum().backward()\n"
        "        rec.step()\n"
        "print('went on')\n")

    def run(force=False):
        done = subprocess.run([sys.executable, "-c", program.replace("FORCE", str(force))], check=True, timeout=300, capture_output=True, text=True)
        assert "went on" in done.stdout
        return done.stderr

    (tmp_path / "run.json").write_text("mine")
    assert "has run.json, without the mark of shardlens.record" in run()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"] and (tmp_path / "run.json").read_text() == "mine"
    assert "mark" not in run(force=True)
    first = json.loads((tmp_path / "run.json").read_text())["recording"]
    assert first in (tmp_path / ".shardlens-recording").read_text()
    assert "mark" not in run()
    (tmp_path / "run.json").write_text("{}")  # of something else, under the mark of this directory
    assert "has metrics.jsonl, model.json, rank0.pt.trace.json.gz, run.json, without the mark" in run()


def test_a_run_that_ends_early_says_so(tmp_path):
    program = (
        "import shardlens, torch\n"
        "model = torch.nn.Linear(3, 2)\n"
        f"with shardlens.record({str(tmp_path)!r}, model=model, warmup=2, steps=3) as rec:\n"
        "    rec.step()\n")
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=300, capture_output=True, text=True)
    assert "the run ended after 1 steps, before the 5" in done.stderr


def test_the_example_records_under_torchrun(tmp_path):
    example = Path(__file__).resolve().parents[2] / "examples" / "python" / "record_fsdp2.py"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", example, tmp_path / "run"],
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    run = shardlens.open(tmp_path / "run")
    assert {row["unit"] for row in run.units()} == {"", "1.layers.0", "1.layers.1", "1.layers.2", "1.layers.3"}
    assert run.gathers("1.layers.2") == 2
    for rank in run.analysis["ranks"]:
        order = rank["order"]["issued_vs_started"]
        assert order["compared"] == 3 * (9 + 5) and order["first_difference"] is None
