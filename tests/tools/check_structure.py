#!/usr/bin/env python3
"""Checks that the structure gate is silent about an unchanged program and finds each change of it.

    check_structure.py --bin DIR OUT [--recordings 21]   minutes; needs PyTorch

Records the same FSDP2 program over two Gloo ranks so many times, each in processes of its own, and once with each of six changes. Every pair of
recordings is compared by `shardlens check --metric structure`: none may be a regression. Each change must be one. OUT keeps the recordings.
"""
import argparse
import itertools
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PYTHON = os.environ.get("SHARDLENS_TEST_PYTHON") or sys.executable
# The word that PROGRAM looks for, and what it then changes. All have the same model: another one is no regression of the program, but inconclusive.
CHANGES = {
    "kept": "parameters of one block stay gathered after forward: one gather less",
    "joined": "two blocks are one unit: other sizes, fewer collectives",
    "embed": "the embedding is a unit of its own: one collective more of each kind, and others of another size",
    "bf16": "gradients are reduced in bf16: another dtype and size",
    "prefetch": "the first block asks for all others: another order",
    "norm": "one all-reduce more after each step",
}
PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT / "python")!r})  # a test Python sets PYTHONPATH itself
""" + """
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
import shardlens
out, change = sys.argv[1:]
dist.init_process_group("gloo"); torch.set_num_threads(1); torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(512, 64)
        self.layers = nn.ModuleList(Block() for i in range(4))
        self.head = nn.Linear(64, 512)
    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

model = Model()
policy = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)} if change == "bf16" else {}
if change == "joined":
    fully_shard([model.layers[0], model.layers[1]], **policy)
for i, layer in enumerate(model.layers):
    if change != "joined" or i > 1:
        fully_shard(layer, reshard_after_forward=not (change == "kept" and i == 1), **policy)
if change == "embed":
    fully_shard(model.embed, **policy)
fully_shard(model, **policy)
if change == "prefetch":
    model.layers[0].set_modules_to_forward_prefetch(list(model.layers[1:]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with shardlens.record(out, model=model, optimizer=optimizer, warmup=2, steps=4) as rec:
    for _ in range(7):
        x = torch.randint(0, 512, (4, 32))
        loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        if change == "norm":
            dist.all_reduce(torch.ones(1))
        optimizer.step(); optimizer.zero_grad()
        rec.step(loss)
dist.destroy_process_group()
"""


def record(directory, change):
    if (directory / "run.json").exists():
        return
    program = directory.parent / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run([PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program, directory, change], check=False, timeout=300,
                          capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0 or not (directory / "run.json").exists():
        sys.exit(f"{directory} was not recorded:\n{done.stderr[-2000:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="folder with shardlens")
    parser.add_argument("out", type=pathlib.Path, help="directory for the recordings; those that are there already are used again")
    parser.add_argument("--recordings", type=int, default=21)
    options = parser.parse_args()
    out, began = options.out.resolve(), time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    same = [out / f"same-{i}" for i in range(options.recordings)]
    for directory in same:
        record(directory, "none")
    for change in CHANGES:
        record(out / change, change)
    print(f"{len(same) + len(CHANGES)} recordings, {time.monotonic() - began:.0f} s", flush=True)

    def gate(baseline, candidate):
        done = subprocess.run([options.bin / "shardlens", "check", "--baseline", baseline, "--candidate", candidate, "--metric", "structure", "--json"], check=False,
                              capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    wrong = 0
    pairs = list(itertools.combinations(same, 2))
    for baseline, candidate in pairs:
        code, text, error = gate(baseline, candidate)
        if code != 0:
            wrong += 1
            print(f"FAILED  {baseline.name} and {candidate.name} are one program, but exit {code}: {(error or text)[-400:]}")
    for change, words in CHANGES.items():
        for ends in ((same[0], out / change), (out / change, same[0])):
            code, text, error = gate(*ends)
            print(f"{'found' if code == 1 else 'FAILED'}   {words}: exit {code}{'' if code == 1 else ': ' + (error or text)[-300:]}")
            wrong += code != 1
    print(f"{len(pairs)} pairs of one program and {2 * len(CHANGES)} with a change, {wrong} not as expected, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
