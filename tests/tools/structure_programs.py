#!/usr/bin/env python3
"""Checks on ten programs that the structure gate is silent about two recordings of one program, and finds changes in each.

    structure_programs.py OUT --bin DIR [NAME…] [--recordings 7]      run it with build/test-python, or the Python of another torch

The programs are those of training_programs.py and library_programs.py. Each is recorded so many times, and once with each change: an all-reduce more
in a step, and, with FSDP2, one unit that stays gathered after forward, or no longer does. Every pair of recordings of a program is compared by
`shardlens check --metric structure`: none may be a regression. Each change must be one, in both directions. Nor may the peak memory of a pair, beyond the
default limit of `--metric peak_memory`. Recordings that OUT has are used again.
"""
import argparse
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import recorded_programs
import training_programs
from shardlens import live_units

NAMES = ("fsdp2-unit-kinds", "fsdp2-prefetch", "fsdp2-accumulate", "fsdp2-hybrid", "fsdp2-offload", "fsdp1-flat", "ddp-buckets", "checkpoint-after", "tensor-fsdp2", "experts")
CHANGES = ("all-reduce", "kept")


def sharded_modules(model):
    return [module for module in model.modules() if any(base.__name__ == "FSDPModule" for base in type(module).__mro__)]


class Run(recorded_programs.Run):
    """A recorded run of a program, with one of CHANGES or none; `changed` says whether it could be made."""

    def __init__(self, rank, world, store, directory, change):
        super().__init__(rank, world, store, directory)
        self.change, self.changed = change, change == "all-reduce"
        self.settings = {"memory": True}

    @contextlib.contextmanager
    def recording(self, model, optimizer):
        units = sharded_modules(model)
        if self.change == "kept" and len(units) > 1:
            group = live_units._groups_of(units[1]._get_fsdp_state())[0]
            units[1].set_reshard_after_forward(group.post_forward_mesh_info is None, recurse=False)  # the other of both
            self.changed = True
        with super().recording(model, optimizer) as recording:
            def step(loss):
                if self.change == "all-reduce":
                    dist.all_reduce(torch.ones(1))
                recording.step(loss)

            yield argparse.Namespace(step=step)


def work(rank, name, store, wanted):
    """All recordings of one program in one process for each rank."""
    warnings.filterwarnings("ignore")
    program = training_programs.PROGRAMS[name]
    world = program.ranks
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for directory, change in wanted:
        torch.manual_seed(rank)
        run = Run(rank, world, store, directory, change)
        program(run)
        dist.barrier()
        if rank == 0 and change and not run.changed:
            (directory / "unchanged").write_text("")
    dist.barrier()
    dist.destroy_process_group()


def record(name, out, recordings):
    """(recordings of the program, those with a change that could be made)."""
    same = [out / f"same-{i}" for i in range(recordings)]
    changed = [out / change for change in CHANGES]
    wanted = [(path, None) for path in same] + list(zip(changed, CHANGES))
    wanted = [(path, change) for path, change in wanted if not (path / "run.json").exists()]
    if wanted:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            mp.spawn(work, (name, f"{scratch}/store", wanted), nprocs=training_programs.PROGRAMS[name].ranks)
    return same, [path for path in changed if not (path / "unchanged").exists()]


def gate(shardlens, baseline, candidate, metric="structure"):
    done = subprocess.run([shardlens, "check", "--baseline", baseline, "--candidate", candidate, "--metric", metric], capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, (done.stdout or done.stderr).splitlines()[:2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("programs", nargs="*", metavar="NAME", default=NAMES)
    parser.add_argument("--bin", required=True, type=Path)
    parser.add_argument("--recordings", type=int, default=7)
    options = parser.parse_args()
    shardlens, wrong, pairs, found = options.bin / "shardlens", 0, 0, 0
    recorded_programs.all_programs()
    print(f"torch {torch.__version__}", flush=True)
    for name in options.programs:
        same, changed = record(name, options.out.resolve() / name, options.recordings)
        alarms = {"structure": [], "peak_memory": []}
        for metric, (baseline, candidate) in itertools.product(alarms, itertools.combinations(same, 2)):
            code, text = gate(shardlens, baseline, candidate, metric)
            if code != 0:
                alarms[metric].append(f"{metric} of {baseline.name} and {candidate.name}: exit {code}: {' '.join(text)}")
        missed = []
        for path in changed:
            for ends in ((same[0], path), (path, same[0])):
                code, text = gate(shardlens, *ends)
                if code != 1:
                    missed.append(f"{path.name}: exit {code}: {' '.join(text)}")
        pairs += len(same) * (len(same) - 1) // 2
        found += 2 * len(changed) - len(missed)
        wrong += len(alarms["structure"]) + len(alarms["peak_memory"]) + len(missed)
        print(f"{name}: {len(alarms['structure'])} alarms of structure, {len(alarms['peak_memory'])} of memory, {2 * len(changed) - len(missed)} of {2 * len(changed)} changes found ({', '.join(path.name for path in changed)})", flush=True)
        for each in alarms["structure"] + alarms["peak_memory"] + missed:
            print(f"  {each}", flush=True)
    print(f"{len(options.programs)} programs, {pairs} pairs of one program, {found} comparisons with a change found, {wrong} not as expected")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
