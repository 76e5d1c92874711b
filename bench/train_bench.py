#!/usr/bin/env python3
"""Compares training steps of Shardlens, PyTorch FSDP2, FSDP1 and DDP on the same machine in one run.

    bench/train_bench.py [--rounds 5] [--steps 40] [--models llama-tiny,six-layers] [--bin build/release/bin]

Two ranks, one thread each, Gloo on 127.0.0.1, AdamW, fp32. full_shard has one unit per layer, flat and per parameter; replicate is compared with DDP. The programs run alternately,
so that other work of the machine affects all of them; a result is the median over rounds of each round's median step. PyTorch's
steps run in tests/tools/fsdp_reference.py, which measures the same part of a step: batch, forward, backward, gradient norm, optimizer.
Shardlens runs twice: without recording, like PyTorch, and with recording.

Needs Python with torch and transformers (requirements of the tests); the models are created by the script.
"""
import argparse
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import tempfile

import ratios

ROOT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "tests/tools/fsdp_reference.py"
MODELS = {
    # name: (--set of fsdp_reference.py make, batch, seq, limit of FSDP2, limit of FSDP1, limit of DDP)
    "llama-tiny": ([], 2, 64, 0.35, 0.6, 0.9),
    "six-layers": (["num_hidden_layers=6", "hidden_size=256", "intermediate_size=688", "num_attention_heads=8",
                    "num_key_value_heads=4", "vocab_size=1024"], 4, 128, 0.9, 0.9, None),
}
WARMUP = 5


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


PER_PARAMETER = {"version": 1, "layout": "per_parameter"}


def run_shardlens(args, model, tokens, batch, seq, recording, strategy="full_shard", plan=None):
    with tempfile.TemporaryDirectory() as directory:
        flags = ["--model", model, "--tokens", tokens, "--out", directory, "--steps", str(args.steps), "--batch", str(batch), "--seq", str(seq)]
        if plan is None:
            flags += ["--strategy", strategy]
        else:
            pathlib.Path(directory, "row.json").write_text(json.dumps(plan))
            flags += ["--plan", directory + "/row.json"]
        if not recording:
            flags += ["--trigger-file", directory + "/never"]
        ranks = []
        for rank in range(2):
            environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", SHARDLENS_RENDEZVOUS=directory + "/store")
            ranks.append(subprocess.Popen([args.bin / "shardlens-worker", *flags], env=environment, stderr=subprocess.PIPE, text=True))
        for rank in ranks:
            _, messages = rank.communicate()
            if rank.returncode:
                sys.exit(f"shardlens-worker ended with {rank.returncode}:\n{messages}")
        return [json.loads(line)["step_ms"] for line in open(directory + "/metrics.jsonl")]


def run_reference(args, model, tokens, batch, seq, api):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        done = subprocess.run([sys.executable, REFERENCE, "train", "--model", model, "--tokens", tokens, "--out", out.name, "--api", api, "--nproc", "2",
                               "--steps", str(args.steps), "--batch", str(batch), "--seq", str(seq), "--port", str(free_port())],
                              check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
        if done.returncode:
            sys.exit(f"{REFERENCE.name} --api {api} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return json.load(open(out.name))["step_ms"]


def make(directory, name):
    settings, batch, seq, *limits = MODELS[name]
    model, tokens = f"{directory}/{name}", f"{directory}/{name}.bin"
    vocabulary = next((s.split("=")[1] for s in settings if s.startswith("vocab_size")), "256")
    for command in (["make", "--arch", "llama", "--out", model, "--set", *settings], ["tokens", "--out", tokens, "--vocab", vocabulary]):
        subprocess.run([sys.executable, REFERENCE, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return model, tokens, batch, seq, limits


def bench(args, directory, name):
    model, tokens, batch, seq, limits = make(directory, name)
    contenders = {
        "Shardlens": lambda: run_shardlens(args, model, tokens, batch, seq, False),
        "Shardlens, recording": lambda: run_shardlens(args, model, tokens, batch, seq, True),
        "Shardlens, per parameter": lambda: run_shardlens(args, model, tokens, batch, seq, False, plan=PER_PARAMETER),
        "PyTorch FSDP2": lambda: run_reference(args, model, tokens, batch, seq, "fsdp2"),
        "PyTorch FSDP1": lambda: run_reference(args, model, tokens, batch, seq, "fsdp1"),
        "Shardlens, replicate": lambda: run_shardlens(args, model, tokens, batch, seq, False, "replicate"),
        "PyTorch DDP": lambda: run_reference(args, model, tokens, batch, seq, "ddp"),
    }
    medians = {contender: [] for contender in contenders}
    for round_ in range(args.rounds):
        for contender, run in contenders.items():
            medians[contender].append(statistics.median(run()[WARMUP:]))
            print(f"  {name} round {round_ + 1}: {contender} {medians[contender][-1]:.1f} ms", file=sys.stderr, flush=True)
    sharded, replicated = (statistics.median(medians[ours]) for ours in ("Shardlens", "Shardlens, replicate"))
    print(f"\n### {name}: batch {batch}, seq {seq}, two ranks, one thread each\n")
    print("| | median step (ms) | rounds, min to max (ms) | Shardlens (the same strategy) / this | limit |\n|---|---|---|---|---|")
    passed = True
    for contender, values in medians.items():
        middle = statistics.median(values)
        limit = dict(zip(("PyTorch FSDP2", "PyTorch FSDP1", "PyTorch DDP"), limits)).get(contender)
        ours = replicated if contender in ("PyTorch DDP", "Shardlens, replicate") else sharded
        passed &= limit is None or ours / middle <= limit
        if contender == "PyTorch FSDP2":
            per_parameter = statistics.median(medians["Shardlens, per parameter"]) / middle
            passed &= per_parameter <= limit
        print(f"| {contender} | {middle:.2f} | {min(values):.2f} to {max(values):.2f} | {ours / middle:.2f} | {limit or ''} |")
    print(f"\nShardlens, per parameter / PyTorch FSDP2: {per_parameter:.2f}")
    for label, ours, theirs in (("FSDP2", "Shardlens", "PyTorch FSDP2"), ("FSDP2-per-parameter", "Shardlens, per parameter", "PyTorch FSDP2"),
                                ("FSDP1", "Shardlens", "PyTorch FSDP1"), ("DDP", "Shardlens, replicate", "PyTorch DDP"),
                                ("recording", "Shardlens, recording", "Shardlens")):
        ratios.report(f"train/{name}/{label}", ratios.by_round(medians[ours], medians[theirs]))
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    args = parser.parse_args()
    if args.steps <= WARMUP or args.rounds < 1:
        parser.error(f"--steps must exceed the {WARMUP} steps of warmup, and --rounds be at least 1")
    if not (args.bin / "shardlens-worker").exists():
        parser.error(f"{args.bin}/shardlens-worker does not exist: build it, or give --bin")
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start; {args.rounds} rounds of {args.steps} steps")
    passed = True
    with tempfile.TemporaryDirectory() as directory:
        for name in args.models.split(","):
            if name not in MODELS:
                parser.error(f"--models: '{name}'; expected {', '.join(MODELS)}")
            passed &= bench(args, directory, name)
    print("\nwithin the limits" if passed else "\nABOVE A LIMIT")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
