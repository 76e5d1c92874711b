#!/usr/bin/env python3
"""Compares saving and loading a sharded run in Shardlens and in torch.distributed.checkpoint.

    bench/checkpoint_bench.py [--gigabytes 1] [--ranks 4] [--rounds 5] [--bin build/release/bin] [--folder DIR]

Every rank has its part of an MLP's parameters and of two moments of AdamW, in fp32; together they have --gigabytes. Shardlens: RunCheckpoints;
PyTorch: DTensors split along the first dimension, dcp.save and dcp.async_save with FileSystemWriter, which flushes files as Shardlens does.
Beside loading is its bound: CPU time of reading the same files from the page cache into one buffer, in one process. The programs run alternately;
a figure is the median over rounds of: seconds, the longest of the ranks; CPU seconds, their sum; memory, the most that a rank had at a time beyond
what it had before. Of an asynchronous save, seconds are those in which the step waits.

Limits: synchronous at most PyTorch's time, 0.7 of its CPU time, and 64 MiB of memory; asynchronous a rank's part and 64 MiB; loading at most
PyTorch's time and 64 MiB. Exit code 1 if one is exceeded. Needs SHARDLENS_TEST_PYTHON, or a python3 with torch.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

import ratios

ROOT = pathlib.Path(__file__).resolve().parent.parent
HIDDEN, VOCABULARY = 1024, 4096
MIB = 1 << 20


def layers_of(gigabytes):
    per_layer, rest = 8 * HIDDEN * HIDDEN, 2 * VOCABULARY * HIDDEN
    return max(1, round((gigabytes * 1e9 / 12 - rest) / per_layer))


def shapes_of(layers):
    shapes = [(VOCABULARY, HIDDEN)] * 2
    for _ in range(layers):
        shapes += [(4 * HIDDEN, HIDDEN), (HIDDEN, 4 * HIDDEN)]
    return shapes


class Measured:
    def __init__(self):
        import time
        self.clock, self.usage = time.perf_counter, lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        self.resident, self.cpu, self.begin = self.memory("VmRSS"), self.usage(), self.clock()

    @staticmethod
    def memory(key):
        line = next(line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith(key + ":"))
        return int(line.split()[1]) * 1024

    def elapsed(self):
        return self.clock() - self.begin

    def show(self, what, blocked):
        print(json.dumps({"what": what, "seconds": self.elapsed(), "blocked_s": blocked, "cpu_s": self.usage() - self.cpu,
                          "extra_bytes": self.memory("VmHWM") - self.resident}), flush=True)


def rank_of_torch(rank, world, layers, out):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import DTensor, Shard
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo", init_method=f"file://{out}/store", rank=rank, world_size=world)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    state = {}
    for number, (rows, columns) in enumerate(shapes_of(layers)):
        for kind in ("weight", "exp_avg", "exp_avg_sq"):
            state[f"{number}.{kind}"] = DTensor.from_local(torch.full((rows // world, columns), 0.5), mesh, [Shard(0)])
    dist.barrier()
    measured = Measured()
    dcp.save(state, checkpoint_id=f"{out}/sync")
    measured.show("sync", measured.elapsed())
    dist.barrier()
    measured = Measured()
    saving = dcp.async_save(state, checkpoint_id=f"{out}/async")
    blocked = measured.elapsed()
    saving.result()
    measured.show("async", blocked)
    dist.barrier()
    measured = Measured()
    dcp.load(state, checkpoint_id=f"{out}/sync")
    measured.show("load", measured.elapsed())
    dist.barrier()
    dist.destroy_process_group()


def launch(commands, environment):
    ranks = [subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
             for command in commands]
    figures = {}
    for rank in ranks:
        out, err = rank.communicate(timeout=600)
        if rank.returncode != 0:
            sys.exit(f"{commands[0][0]} failed: {err.strip().splitlines()[-1:]}")
        for line in out.splitlines():
            if line.startswith("{"):
                seen = json.loads(line)
                figures.setdefault(seen.pop("what"), []).append(seen)
    return {what: {"seconds": max(s["seconds"] for s in seen), "blocked_s": max(s["blocked_s"] for s in seen),
                   "cpu_s": sum(s["cpu_s"] for s in seen), "extra_bytes": max(s["extra_bytes"] for s in seen)} for what, seen in figures.items()}


def reading(folder):
    """CPU seconds of reading a folder's files from the page cache: the least that loading them takes."""
    buffer = bytearray(MIB)
    before = resource.getrusage(resource.RUSAGE_SELF)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with open(file, "rb", buffering=0) as data:
                while data.readinto(buffer):
                    pass
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--folder", type=pathlib.Path, help="where checkpoints are written (a temporary folder)")
    parser.add_argument("--torch-rank", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch_rank:
        rank, world, layers, out = options.torch_rank
        return rank_of_torch(int(rank), int(world), int(layers), out)
    layers = layers_of(options.gigabytes)
    part = sum(rows * columns for rows, columns in shapes_of(layers)) * 12 // options.ranks
    python = os.environ.get("SHARDLENS_TEST_PYTHON", "python3")
    rounds, bounds = {"Shardlens": [], "PyTorch": []}, []
    for _ in range(options.rounds):
        for program, seen in rounds.items():
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                model = pathlib.Path(folder) / "config.json"
                model.write_text(json.dumps({"model_type": "mlp", "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 4 * HIDDEN,
                                             "num_hidden_layers": layers}))
                ours = [options.bin / "checkpoint_save", "--world", options.ranks, "--model", model, "--out", folder]
                commands = [[*ours, "--rank", rank] if program == "Shardlens" else
                            [python, __file__, "--torch-rank", rank, options.ranks, layers, folder] for rank in range(options.ranks)]
                seen.append(launch(commands, {**os.environ, "SHARDLENS_RENDEZVOUS": f"{folder}/rendezvous", "GLOO_SOCKET_IFNAME": "lo"}))
                if program == "Shardlens":
                    bounds.append(reading(pathlib.Path(folder) / "sync"))
    median = {program: {what: {key: statistics.median(each[what][key] for each in seen) for key in seen[0][what]} for what in seen[0]}
              for program, seen in rounds.items()}
    print(f"{part * options.ranks / 1e9:.2f} GB over {options.ranks} ranks, {options.rounds} rounds; a rank's part is {part / MIB:.0f} MiB")
    for what in ("sync", "async", "load"):
        for program in rounds:
            f = median[program][what]
            print(f"{what:6} {program:10} {f['seconds']:.2f} s ({f['blocked_s']:.2f} s the step waits), {f['cpu_s']:.2f} s of CPU, "
                  f"{f['extra_bytes'] / MIB:.0f} MiB")
    print(f"reading the files from the page cache: {statistics.median(bounds):.2f} s of CPU")
    ours, theirs = median["Shardlens"], median["PyTorch"]
    checks = {"synchronous, share of PyTorch's time": (ours["sync"]["seconds"] / theirs["sync"]["seconds"], 1.0),
              "synchronous, share of its CPU time": (ours["sync"]["cpu_s"] / theirs["sync"]["cpu_s"], 0.7),
              "synchronous, MiB": (ours["sync"]["extra_bytes"] / MIB, 64),
              "asynchronous, MiB": (ours["async"]["extra_bytes"] / MIB, part / MIB + 64),
              "loading, share of PyTorch's time": (ours["load"]["seconds"] / theirs["load"]["seconds"], 1.0),
              "loading, MiB": (ours["load"]["extra_bytes"] / MIB, 64)}
    for what, (seen, limit) in checks.items():
        print(f"{what}: {seen:.2f}, limit {limit:.2f}{'' if seen <= limit else '  EXCEEDED'}")
    for what, key in (("sync", "seconds"), ("sync", "cpu_s"), ("load", "seconds")):
        ratios.report(f"checkpoint/{what}-{key.removesuffix('_s')}", ratios.by_round(*([each[what][key] for each in seen] for seen in rounds.values())))
    ratios.report("checkpoint/load-cpu-over-reading", ratios.by_round([each["load"]["cpu_s"] for each in rounds["Shardlens"]], bounds))
    return any(seen > limit for seen, limit in checks.values())


if __name__ == "__main__":
    sys.exit(main())
