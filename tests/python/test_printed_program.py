"""The lines of `shardlens plan --pytorch` run, and the model trains as on one rank."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "data/llama-tiny/config.json"


def printed(mesh, folder):
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"version": 1, "mesh": mesh, "units": [{"modules": "model.layers.*"}, {"modules": ""}]}))
    program = os.environ.get("SHARDLENS_PROGRAM", "shardlens")
    done = subprocess.run([program, "plan", "--model", MODEL, "--plan", plan, "--world-size", "4", "--pytorch"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_printed_lines_run_on_four_ranks(tmp_path):
    lines, out = tmp_path / "lines.py", tmp_path / "out.json"
    lines.write_text(printed({"shard": 2, "tensor": 2}, tmp_path))
    done = subprocess.run([sys.executable, HERE / "printed_program.py", lines, out], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text())
    assert found["losses"][1] == pytest.approx(found["losses"][0], rel=1e-5)
    assert found["different"] < 1e-5
    placed = found["placements"]
    assert placed["model.layers.3.self_attn.o_proj.weight"] == ["('shard', Shard(dim=0))", "('tensor', Shard(dim=1))"]
    assert placed["model.layers.0.input_layernorm.weight"] == ["('shard', Shard(dim=0))", "('tensor', Replicate())"]


def test_context_and_degrees_are_printed(tmp_path):
    lines = printed({"shard": 2, "context": 2}, tmp_path).splitlines()
    assert lines[0] == 'mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("shard", "context"))'
    assert 'mesh["shard", "context"]._flatten("shard_context")' in lines
    assert any(line.startswith("fully_shard(model, mesh=mesh[\"shard_context\"]") for line in lines)
    assert any(line.startswith("# torchtitan:") and "data_parallel_shard_degree 2" in line and "context_parallel_degree 2" in line for line in lines)
