#!/usr/bin/env python3
"""Predicts recorded programs on another degree of tensor or context parallelism, and compares with recordings of that degree.

    other_degrees.py OUT [NAME…] [--again] [--json FILE]      $SHARDLENS_PROGRAM names the program

Llamas of tensor_models.py on two or four Gloo ranks, recorded with shardlens.record into OUT/NAME, seven steps of at least 200 ms each:

s2, s4          fully_shard over all ranks
t2, t2-whole    tensor parallel over two ranks, with and without sequence parallelism, twice the samples of a rank of s2
s2c2, s2c2-ring torch's context_parallel over two of four ranks (all_gather, ring), twice the samples of a rank of s4

Of each NAME and the one of as many ranks that only shards, each is predicted from the other by `simulate --workload FROM --model config.json --plan TO.json`. The table has the measured median, the prediction, its
error, its 90 % interval, and the error of the run's own plan by its model; refusals follow, such as for collectives that the run has not. It needs a quiet machine.
"""
import argparse
import json
import math
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import collective_log  # noqa: E402
import tensor_models  # noqa: E402
import tensor_programs  # noqa: E402
from shardlens import program  # noqa: E402

WARMUP, STEPS = 2, 7
CONFIG = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096,
          "max_position_embeddings": 2048}
BASE = {**tensor_programs.DEFAULT, "config": CONFIG, "seq": 256, "optimizer": "loop"}
PROGRAMS = {
    "s2": {**BASE, "mesh": {"shard": 2}, "batch": 1},
    "t2": {**BASE, "mesh": {"tensor": 2}, "batch": 2},
    "t2-whole": {**BASE, "mesh": {"tensor": 2}, "batch": 2, "sequence_parallel": False},
    "s4": {**BASE, "mesh": {"shard": 4}, "batch": 1},
    "s2c2": {**BASE, "mesh": {"shard": 2, "context": 2}, "batch": 2, "gather": "all_gather"},
    "s2c2-ring": {**BASE, "mesh": {"shard": 2, "context": 2}, "batch": 2, "gather": "ring"},
}


def record(row, out):
    """On each rank: trains and records."""
    import torch
    import torch.nn.functional as F

    import shardlens

    torch.set_num_threads(1)
    meshes, model, forward, vocabulary = tensor_programs.prepared(row)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    with shardlens.record(out, model=model, optimizer=optimizer, warmup=WARMUP, steps=STEPS, force=True) as recorder:
        for step in range(WARMUP + STEPS):
            torch.manual_seed(step)
            tokens, positions = torch.randint(0, vocabulary, (row["batch"], row["seq"])), torch.arange(row["seq"]).unsqueeze(0)
            with tensor_programs.context_of(row, meshes, [tokens, positions]):
                loss = F.cross_entropy(forward(tokens, positions).flatten(0, 1).float(), tokens.flatten())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step(loss)


def ranks_of(name):
    return math.prod(PROGRAMS[name]["mesh"].values())


def whole_of(name):
    """The program of as many ranks that only shards."""
    return f"s{ranks_of(name)}"


def asked_plan(source, row):
    """The plan of the run `source` on the mesh of `row`."""
    plan = json.loads((source / "plan.json").read_text())
    plan.pop("tensor_parallel", None)
    for key in ("sequence_parallel", "loss_parallel", "context_parallel"):
        plan.pop(key, None)
    wanted = tensor_programs.plan_of(row)
    return plan | {key: wanted[key] for key in ("mesh", "sequence_parallel", "loss_parallel", "context_parallel", "tensor_parallel") if key in wanted}


def compare(out, source, target):
    row = PROGRAMS[target]
    plan = out / f"{source}-as-{target}.json"
    plan.write_text(json.dumps(asked_plan(out / source, row)))
    answer = program.ask(["simulate", "--workload", out / source, "--model", out / "config.json", "--plan", plan, "--batch", str(row["batch"])])
    own = program.ask(["simulate", "--workload", out / target])["baseline"]
    low, high = answer["interval_ns"]
    return {"from": source, "to": target, "measured_ms": own["measured_step_ns"] / 1e6, "predicted_ms": answer["step_ns"] / 1e6,
            "error": answer["step_ns"] / own["measured_step_ns"] - 1, "low_ms": low / 1e6, "high_ms": high / 1e6, "inside": low <= own["measured_step_ns"] <= high,
            "own_by_model": answer["baseline"]["error"], "own_recorded": own["error"], "tokens_per_s": answer["tokens_per_s"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(tensor_models.config_of(BASE)))
    names = [name for name in options.names or PROGRAMS if name != whole_of(name)]
    for name in dict.fromkeys(each for name in names for each in (whole_of(name), name)):
        if options.again or not (out / name / "run.json").exists():
            row = PROGRAMS[name]
            collective_log.run_on_ranks(ranks_of(name), lambda row=row, name=name: record(row, out / name))
    rows, refused = [], []
    for pair in (pair for name in names for pair in ((whole_of(name), name), (name, whole_of(name)))):
        try:
            rows.append(compare(out, *pair))
        except program.ShardlensError as error:
            refused.append(f"{pair[0]} to {pair[1]}: {error}")
    print("| from | to | measured | predicted | error | 90 % | own plan by the model | own plan, recorded operators of the target |\n|---|---|---:|---:|---:|---|---:|---:|")
    for row in rows:
        print(f"| {row['from']} | {row['to']} | {row['measured_ms']:.1f} ms | {row['predicted_ms']:.1f} ms | {100 * row['error']:+.1f} % | {row['low_ms']:.0f} to {row['high_ms']:.0f}"
              f"{'' if row['inside'] else ' (outside)'} | {100 * row['own_by_model']:+.1f} % | {100 * row['own_recorded']:+.1f} % |")
    print("\n".join(refused))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
