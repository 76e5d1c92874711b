"""docs/schemas: what the commands print and write is as the schemas say, a changed document is not, and shardlens.types is made from them."""
import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tools"))
import schemas  # noqa: E402

DATA, TRACES = ROOT / "tests" / "data", ROOT / "tests" / "data" / "pytorch_traces"
RUN, MODEL, PLAN = DATA / "recorded_run", DATA / "llama-tiny", DATA / "recorded_run" / "plan.json"
COMMANDS = [
    ["--version"],
    ["doctor"],
    ["analyze", RUN],
    ["analyze", ROOT / "traces" / "fsdp2-h200", "--by", "span", "--critical-path"],
    ["analyze", ROOT / "traces" / "fsdp2-h200-graph"],
    ["analyze", DATA / "recorded_meshes" / "tensor", "--explain", "(root)"],
    ["simulate", "--workload", DATA / "recorded_meshes" / "experts-uneven"],
    ["advise", DATA / "recorded_meshes" / "experts-uneven"],
    ["analyze", TRACES / "ddp-buckets"],
    ["analyze", TRACES / "fsdp2-memory"],
    ["analyze", RUN, "--compat", "hta"],
    ["plan", "--model", MODEL, "--world-size", "8", "--parameters", "--actions"],
    ["plan", "--model", MODEL, "--strategy", "replicate", "--world-size", "2"],
    ["plan", "--from-trace", TRACES / "ddp-buckets"],
    ["plan", "--from-trace", RUN, "--parameters"],
    ["simulate", "--model", MODEL, "--hardware", "8xH100"],
    ["simulate", "--workload", RUN, "--strategy", "shard_grad_op"],
    ["simulate", "--model", MODEL, "--hardware", "8xH100", "--fits"],
    ["search", "--model", MODEL, "--hardware", "8xH100", "--memory-limit", "2GiB", "--per-block", "--precisions", "fp32,bf16", "--fits"],
    ["search", "--model", MODEL, "--hardware", "4xPCIe", "--memory-limit", "1MiB"],
    ["advise", RUN, "--top", "50"],
    ["advise", TRACES / "ddp-buckets"],
    ["check", "--baseline", TRACES / "fsdp2-no-reshard", "--candidate", TRACES / "fsdp2-reshard"],
    ["compare", TRACES / "fsdp2-no-reshard", TRACES / "fsdp2-reshard"],
]


def answer(*arguments):
    done = subprocess.run([os.environ["SHARDLENS_PROGRAM"], *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1, 5), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", schemas.names())
def test_each_schema_is_one_and_describes_itself(name):
    Draft202012Validator.check_schema(schemas.load(name))
    assert schemas.load(name)["$id"] == f"{name}.json" and schemas.load(name)["description"].endswith(".")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(Path(word).name if isinstance(word, Path) else word for word in command))
def test_an_output_is_as_its_schema_says(command):
    name = schemas.of_command([*map(str, command), "--json"])
    assert schemas.problems(answer(*command, "--json"), name) == []


def test_summaries_and_a_calibration(tmp_path):
    summaries = answer("analyze", "--summarize", "--out", tmp_path / "summaries", RUN, "--json")
    assert schemas.problems(summaries, "analyze_summarize") == []
    assert schemas.problems(answer("merge", *(row["path"] for row in summaries["summaries"]), "--json"), "analyze") == []
    calibration = answer("calibrate", "--capture", ROOT / "traces" / "llama-emulated8", "--out", tmp_path / "calibration.json", "--json")
    assert schemas.problems(calibration, "calibrate") == []


def test_a_table_of_published_runs(tmp_path):
    head, *rows = (DATA / "training_runs.csv").read_text().splitlines()
    (tmp_path / "runs.csv").write_text("\n".join([head, *rows[::12]]) + "\n")
    found = answer("validate", "--runs", tmp_path / "runs.csv", "--json")
    assert len(found["rows"]) > 10 and schemas.problems(found, "validate") == []


def test_a_table_of_collectives(tmp_path):
    rows = ["source,gpu,n_gpus,collective,algo,size_bytes,time_us,busbw_GBs"]
    rows += [f"here,H100,8,all_reduce,ring,{1 << power},{10 + (1 << power) / 250e3},1" for power in range(20, 28)]
    (tmp_path / "curves.csv").write_text("\n".join(rows) + "\n")
    found = answer("validate", "--collectives", tmp_path / "curves.csv", "--json")
    assert found["curves"] and schemas.problems(found, "validate_collectives") == []


def test_a_simulated_run_and_the_files_of_recorded_ones(tmp_path):
    answer("simulate", "--model", MODEL, "--hardware", "8xH100", "--out", tmp_path / "run", "--json")
    written = [tmp_path / "run" / name for name in ("plan.json", "run.json")]
    for folder in (ROOT / "traces", DATA):
        written += [path for name in ("plan.json", "run.json", "model.json") for path in sorted(folder.rglob(name)) if not {"corrupt", "fuzz"} & set(path.parts)]
    assert len(written) > 60
    assert {str(path): found for path in written if (found := schemas.problems(json.loads(path.read_text()), schemas.OF_FILES[path.name]))} == {}


def test_a_new_key_is_named_with_its_path_and_the_schema():
    found = answer("analyze", RUN, "--json")
    found["ranks"][1]["units"][0]["new"] = 1
    found["clocks"][0]["more"] = {}
    assert schemas.problems(found, "analyze") == [
        "key 'more' at clocks.0 is not in docs/schemas/analyze.json (#/$defs/Clock)",
        "key 'new' at ranks.1.units.0 is not in docs/schemas/analyze.json (#/$defs/UnitFigures)"]


def test_a_key_of_a_shared_definition_is_named_with_the_file_that_has_it():
    found = answer("simulate", "--model", MODEL, "--hardware", "8xH100", "--json")
    found["mesh"]["pipeline"] = 1
    del found["software"]["compile"]
    found["bare"]["step_ns"] = "short"
    assert schemas.problems(found, "simulate") == [
        'bare.step_ns is "short", but type is "integer" in docs/schemas/simulate.json (#/$defs/BareStep/properties/step_ns)',
        "key 'compile' is missing at software; docs/schemas/common.json (#/$defs/Software) requires it",
        "key 'pipeline' at mesh is not in docs/schemas/common.json (#/$defs/Mesh)"]


def places(document, path=()):
    """Every place of a document."""
    yield path
    for key, value in document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ():
        yield from places(value, (*path, key))


@pytest.mark.parametrize(("name", "path"), [("plan_file", RUN / "plan.json"), ("run_file", ROOT / "traces" / "llama-h200" / "run.json"), ("run_file", RUN / "run.json")])
def test_a_changed_type_is_found_wherever_it_is(name, path):
    document = json.loads(path.read_text())
    for place in places(document):
        changed, wrong = copy.deepcopy(document), {"another": [None]}
        here = changed
        for key in place[:-1]:
            here = here[key]
        if place:
            here[place[-1]] = wrong
        assert schemas.problems(changed if place else wrong, name), place


@pytest.mark.parametrize("plan", [
    {}, {"version": 2}, {"version": 1, "units": []}, {"version": 1, "units": [{}]}, {"version": 1, "reshard_after_forward": "yes"}, {"version": 1, "mesh": {"pipeline": 2}},
    {"version": 1, "mixed_precision": {"param_dtype": "float32"}}, {"version": 1, "gradient_divide_factor": 0}, {"version": 1, "forward_prefetch": -1}, {"version": 1, "shard": 4}])
def test_a_plan_that_the_program_refuses_is_not_valid(tmp_path, plan):
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    done = subprocess.run([os.environ["SHARDLENS_PROGRAM"], "plan", "--model", MODEL, "--plan", tmp_path / "plan.json"], capture_output=True, text=True)
    assert done.returncode == 3, done.stdout
    assert schemas.problems(plan, "plan_file")


@pytest.mark.parametrize("name", schemas.names())
def test_a_printed_schema_needs_no_other(name):
    printed = answer("schema", name)
    assert printed["title"] == schemas.load(name)["title"]
    # What the files say together, the printed schema says too: also of what is in a schema that it refers to.
    if name == "search":
        found = answer("search", "--model", MODEL, "--hardware", "8xH100", "--memory-limit", "2GiB", "--json")
        assert list(Draft202012Validator(printed).iter_errors(found)) == []
        found["best"]["plan"]["dialect"] = "fsdp3"
        assert [error.json_path for error in Draft202012Validator(printed).iter_errors(found)] == ["$.best"]
    else:
        list(Draft202012Validator(printed).iter_errors({}))


def test_a_name_that_is_none_is_refused_with_the_one_that_is_meant():
    done = subprocess.run([os.environ["SHARDLENS_PROGRAM"], "schema", "analyse"], capture_output=True, text=True)
    assert done.returncode == 2 and "did you mean 'analyze'" in done.stderr


def test_the_types_are_made_from_the_schemas():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "python_types", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_rows_of_a_run_are_as_their_schema_says():
    import shardlens

    seen = set()
    for path in (RUN, ROOT / "traces" / "fsdp2-h200", TRACES / "fsdp2-default"):
        run = shardlens.open(path)
        rows = {name: [dict(row) for row in getattr(run, name)()] for name in ("units", "steps", "collectives", "causes", "order")}
        assert schemas.problems(rows, "python_rows") == []
        seen |= {name for name, found in rows.items() if found}
    assert seen == rows.keys()
