#!/usr/bin/env python3
"""Compares what `shardlens analyze --json` finds across ranks with generated runs whose truth is known, because they are made from it.

    check_ranks.py --shardlens BIN [--seeds 1000] [--first 0] [--keep DIR]

A run has several process groups: shards within a node, replicas across nodes, experts (uneven all-to-alls) or tensor parallelism. Each node has a
clock of its own, up to two seconds off, and each rank one that is up to 50 µs off its node's. Ranks start late, and ends scatter by up to 2 µs.
Traces have lost events: the first ones, or some in the middle. Half of the runs have no sequence numbers; some of these, of one group, have no
arguments at all.

Prints one table. Exit 1 if clocks are off by more than 20 µs, or a delay of another rank by more than 1 %, in more than 2 % of the runs; or if a
rank is ever said to have delayed others that never did, by more than 1 % of the step. The last seeds that failed are named.
"""
import argparse
import collections
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

EPOCH = 1_764_000_000_000_000_000
NAMES = {"all_gather": ("_allgather_base", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
         "reduce_scatter": ("_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
         "all_reduce": ("allreduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
         "all_to_all": ("all_to_allv", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")}


class Group:
    def __init__(self, name, ranks):
        self.name, self.ranks, self.sequence = name, ranks, 0


class Mesh:
    """Ranks in nodes, and the groups of each rank: shard (within a node), replicate (across nodes), inner (experts or tensor parallel)."""

    def __init__(self, rng, one_group):
        self.nodes = 1 if one_group else rng.choice([1, 2, 2, 3])
        self.per_node = rng.choice([2, 3, 4])
        self.world = self.nodes * self.per_node
        self.node_of = [rank // self.per_node for rank in range(self.world)]
        self.shard = self.groups("shard", [list(range(n * self.per_node, (n + 1) * self.per_node)) for n in range(self.nodes)])
        self.replicate = self.groups("replicate", [list(range(i, self.world, self.per_node)) for i in range(self.per_node)] if self.nodes > 1 else [])
        self.inner, self.inner_kind = {}, None
        if not one_group and rng.random() < 0.6:
            self.inner_kind = rng.choice(["all_to_all", "all_reduce"])
            whole = self.inner_kind == "all_to_all" and rng.random() < 0.5
            self.inner = self.groups("inner", [list(range(self.world))] if whole else [g.ranks for g in self.distinct(self.shard)])

    @staticmethod
    def groups(name, lists):
        out = {}
        for i, ranks in enumerate(lists):
            group = Group(f"{name}_{i}", ranks)
            out.update({rank: group for rank in ranks})
        return out

    @staticmethod
    def distinct(groups):
        return list({id(g): g for g in groups.values()}.values())


class Run:
    """Collectives in true time, as each rank saw them."""

    def __init__(self, rng, mesh, layers, steps):
        self.rng, self.mesh = rng, mesh
        self.parts = collections.defaultdict(list)  # by rank: (step, group, kind, sequence, start, end, elements, id)
        self.free = collections.defaultdict(lambda: 2_000_000)  # by (rank, stream): when it is free
        self.late = [rng.choice([0, 0, 0, 1]) * rng.randint(100_000, 400_000) for _ in range(mesh.world)]
        self.count, self.steps = 0, steps
        sizes = [rng.choice([1, 1, 2]) * 1024 * mesh.world for _ in range(layers)]
        self.windows = []
        for step in range(steps):
            begin = max([0, *self.free.values()]) + 500_000
            for rank in range(mesh.world):
                for stream in ("shard", "inner", "replicate"):
                    self.free[rank, stream] = begin
            for layer in range(layers):
                self.collective(step, mesh.shard, "shard", "all_gather", sizes[layer])
                if mesh.inner:
                    self.collective(step, mesh.inner, "inner", mesh.inner_kind, 512 * (1 + layer))
            for layer in reversed(range(layers)):
                self.collective(step, mesh.shard, "shard", "all_gather", sizes[layer])
                self.collective(step, mesh.shard, "shard", "reduce_scatter", sizes[layer])
                if mesh.replicate:
                    self.collective(step, mesh.replicate, "replicate", "all_reduce", sizes[layer] // mesh.per_node)
            self.windows.append(begin)
        self.end = max(self.free.values()) + 100_000

    def collective(self, step, groups, stream, kind, elements):
        compute = self.rng.randint(200_000, 900_000)
        for group in Mesh.distinct(groups):
            starts = {}
            for rank in group.ranks:
                delay = self.late[rank] if self.rng.random() < 0.3 else 0
                starts[rank] = self.free[rank, stream] + compute + delay + self.rng.randint(0, 30_000)
            last, duration = max(starts.values()), self.rng.randint(60_000, 300_000)
            self.count += 1
            for rank in group.ranks:
                share = self.rng.uniform(0.2, 1) if kind == "all_to_all" else 1
                end = last + int(duration * share) + self.rng.randint(0, 2_000)
                own = int(elements * self.rng.uniform(0.5, 2)) if kind == "all_to_all" else elements
                self.parts[rank].append((step, group, kind, group.sequence, starts[rank], end, own, self.count))
                self.free[rank, stream] = end
            group.sequence += 1

    def lose(self):
        """Drops parts, as traces that begin late or had too few buffers lack them."""
        for rank in range(self.mesh.world):
            how = self.rng.choice(["nothing", "nothing", "first", "some"])
            if how == "first":
                self.parts[rank] = self.parts[rank][self.rng.randint(1, 2):]
            elif how == "some":
                self.parts[rank] = [p for p in self.parts[rank] if self.rng.random() > 0.04]


def write(run, rank, clock, numbered, arguments, path):
    rows, correlation, host_free = [], 100, 0

    def add(cat, name, pid, tid, start, end, **args):
        begin = EPOCH + start + clock
        rows.append(f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid}, "ts": {begin // 1000}.{begin % 1000:03d}, '
                    f'"dur": {(end - start) // 1000}.{(end - start) % 1000:03d}, "args": {json.dumps(args)}}}')

    for step, begin in enumerate(run.windows):
        end = run.windows[step + 1] if step + 1 < len(run.windows) else run.end
        add("user_annotation", f"ProfilerStep#{step}", 1, 1, begin - 60_000, end - 60_000)
    streams = {}
    for step, group, kind, sequence, start, end, elements, _ in sorted(run.parts[rank], key=lambda p: p[4]):
        correlation += 1
        host_free = max(host_free + 3_000, start - 50_000)
        add("cuda_runtime", "cudaLaunchKernel", 1, 1, host_free, host_free + 2_000, correlation=correlation)
        stream = streams.setdefault(group.name, 20 + len(streams))
        args = {"stream": stream, "correlation": correlation}
        if arguments:
            args |= {"Collective name": NAMES[kind][0], "dtype": "Float", "In msg nelems": elements, "Out msg nelems": elements,
                     "Group size": len(group.ranks), "Process Group Name": group.name, "Process Group Ranks": str(group.ranks)}
        if numbered:
            args["Seq"] = sequence
        add("kernel", NAMES[kind][1], 0, stream, start, end, **args)
        correlation += 1
        add("cuda_runtime", "cudaLaunchKernel", 1, 1, host_free + 2_000, host_free + 2_900, correlation=correlation)
        add("kernel", "sgemm", 0, 7, end, end + 10_000, stream=7, correlation=correlation)
    head = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": run.mesh.world}}
    path.write_text(json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(rows) + "]}")


def truth_of(run):
    """Parts that another rank has too, and what ranks delayed others by: by rank."""
    members = collections.defaultdict(dict)
    for rank, parts in run.parts.items():
        for part in parts:
            members[part[7]][rank] = part
    matched, held_up = [0] * run.mesh.world, [0] * run.mesh.world
    for ranks in members.values():
        if len(ranks) < 2:
            continue
        for rank in ranks:
            matched[rank] += 1
        starts = sorted((part[4], rank) for rank, part in ranks.items())
        held_up[starts[-1][1]] += starts[-1][0] - starts[-2][0]
    return matched, held_up


def generate(seed, directory):
    rng = random.Random(seed)
    numbered = seed % 2 == 0
    arguments = numbered or rng.random() < 0.7
    mesh = Mesh(rng, one_group=not arguments)
    run = Run(rng, mesh, layers=rng.randint(3, 6), steps=rng.randint(2, 4))
    run.lose()
    nodes = [rng.choice([0, rng.randint(-2_000_000, 2_000_000), rng.randint(-2_000_000_000, 2_000_000_000)]) for _ in range(mesh.nodes)]
    clocks = [nodes[mesh.node_of[rank]] + rng.randint(-50_000, 50_000) for rank in range(mesh.world)]
    for rank in range(mesh.world):
        write(run, rank, clocks[rank], numbered, arguments, directory / f"rank{rank}.json")
    middle = sorted(clocks)[(mesh.world - 1) // 2]
    matched, held_up = truth_of(run)
    shape = f"{'numbered' if numbered else 'without Seq' if arguments else 'without arguments'}, {'one node' if mesh.nodes == 1 else 'several nodes'}"
    return {"shape": shape, "inner": mesh.inner_kind, "clocks": [c - middle for c in clocks], "matched": matched, "held_up": held_up,
            "step": run.end / run.steps, "steps": run.steps}


def compare(truth, found):
    """The faults found: clocks, missing or wrong matches, delays of other ranks."""
    wrong = set()
    clocks = [c["offset_ns"] for c in found["clocks"]]
    if len(clocks) != len(truth["clocks"]) or any(abs(a - b) > 20_000 for a, b in zip(clocks, truth["clocks"])):
        wrong.add("clocks")
    for expected, clock in zip(truth["matched"], found["clocks"]):
        uneven = truth["inner"] == "all_to_all" and "numbered" not in truth["shape"]  # matched only where all ranks have equally many
        if clock["collectives"] > expected or (clock["collectives"] < 0.95 * expected and not uneven):
            wrong.add("matches")
    whole = truth["step"] * truth["steps"]
    for expected, straggler in zip(truth["held_up"], found["stragglers"]):
        slack = 0.01 * whole + 0.05 * expected
        if straggler["held_up_ns"] > expected + slack:
            wrong.add("false delay")
        elif straggler["held_up_ns"] < expected - slack and not (truth["inner"] == "all_to_all" and "numbered" not in truth["shape"]):
            wrong.add("missed delay")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shardlens", required=True)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="write the run of seed FIRST here, print its truth and stop")
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        print(json.dumps(generate(options.first, options.keep), indent=1))
        return 0
    rows, failed = collections.defaultdict(collections.Counter), []
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            truth = generate(seed, Path(folder))
            done = subprocess.run([options.shardlens, "analyze", "--json", folder], capture_output=True, text=True, timeout=120, check=False)
            if done.returncode != 0:
                sys.exit(f"seed {seed}: exit {done.returncode}: {done.stderr}")
            wrong = compare(truth, json.loads(done.stdout))
        rows[truth["shape"]]["runs"] += 1
        rows[truth["shape"]].update(wrong)
        if wrong:
            failed.append(f"{seed} ({', '.join(sorted(wrong))})")
    kinds = ("clocks", "matches", "missed delay", "false delay")
    print("| runs | n | " + " | ".join(f"{kind} wrong" if kind in kinds[:2] else kind for kind in kinds) + " |\n|---|---:|---:|---:|---:|---:|")
    total = collections.Counter()
    for shape, row in sorted(rows.items()):
        print(f"| {shape} | {row['runs']} | " + " | ".join(str(row[kind]) for kind in kinds) + " |")
        total.update(row)
    print(f"| all | {total['runs']} | " + " | ".join(str(total[kind]) for kind in kinds) + " |")
    if failed:
        print("wrong:", "; ".join(failed[-12:]), file=sys.stderr)
    good = all(total[kind] <= 0.02 * total["runs"] for kind in kinds[:3]) and total["false delay"] == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
