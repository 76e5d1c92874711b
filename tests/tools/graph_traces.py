#!/usr/bin/env python3
"""Makes traces whose steps ran as CUDA graphs out of eager GPU traces, and eager traces of many shapes to make them of.

    graph_traces.py capture TRACE OUT [--steps 1,2] [--seed 1] [--annotate all|forward]
    graph_traces.py shape NAME DIR [--ranks 2] [--seed 1]

`capture` replaces forward and backward of the steps by a replay: host operators, ranges, launches, flows and the arguments of collectives go;
one cudaGraphLaunch stays, which all kernels have as their launch. Start times are jittered, so that the order on each stream stays, and
streams get other numbers. `--annotate` adds to the kernels what torch.cuda's annotations add: module_fqn, or `str` with "L.", and
autograd_phase. What a kernel belongs to is read from the recorder's own ids ("External id" of Shardlens's traces) or from the `owner` that
generated rows have.

Shapes are FSDP2 steps of a small model: see SHAPES. Their rows carry `owner`: [unit, section].
"""
import argparse
import gzip
import json
import random
from pathlib import Path

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")
SECTIONS = (None, "forward", "loss", "backward", "clip", "optimizer")
COLLECTIVE_ARGUMENTS = ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name", "Process Group Description",
                        "Process Group Ranks", "Seq", "seq", "unit", "action", "issued_ns", "emulated", "External id")


def read(path):
    opened = gzip.open(path, "rt") if str(path).endswith(".gz") else open(path)
    with opened as file:
        return json.load(file)


def write(document, path):
    opened = gzip.open(path, "wt") if str(path).endswith(".gz") else open(path, "w")
    with opened as file:
        json.dump(document, file)


def owner_of(row, document):
    """(unit, section) of a device event, or None."""
    if "owner" in row:
        return tuple(row["owner"])
    units = document.get("shardlens", {}).get("units")
    number = row.get("args", {}).get("External id", 0)
    if not units or number == 0:
        return None
    unit = number // 8
    return (units[unit - 1] if unit else None, SECTIONS[number % 8])


def steps_of(rows):
    marks = {}
    for row in rows:
        if row.get("cat") == "user_annotation" and row["name"].startswith("ProfilerStep#"):
            marks[int(row["name"].split("#")[1])] = (row["ts"], row["ts"] + row["dur"])
    return marks


def captured_work(document, begin, end):
    """Device events of forward, loss and backward that the host launched between two times, and the launches."""
    launches = {row["args"]["correlation"]: row for row in document["traceEvents"]
                if row.get("cat") in RUNTIME and "correlation" in row.get("args", {}) and begin <= row["ts"] < end}
    work = []
    for row in document["traceEvents"]:
        if row.get("cat") in DEVICE and row["args"].get("correlation") in launches:
            owner = owner_of(row, document)
            if owner is None or owner[1] in ("forward", "loss", "backward"):
                work.append(row)
    return work, launches


def jitter(work, rng):
    """Shifts starts by less than the gaps, so that the order on each stream stays."""
    by_stream = {}
    for row in work:
        by_stream.setdefault(row["tid"], []).append(row)
    for rows in by_stream.values():
        rows.sort(key=lambda row: row["ts"])
        for row, after in zip(rows, [*rows[1:], None]):
            gap = 0.5 if after is None else after["ts"] - row["ts"] - row["dur"]
            if gap > 0.002:
                row["ts"] = round(row["ts"] + rng.uniform(0, min(0.4 * gap, 0.4)), 3)


def annotate(row, owner, style, forward_only):
    unit, section = owner
    if section not in ("forward", "backward") or unit is None or (forward_only and section == "backward"):
        return
    # Kernels of a module within the unit, as real annotations name the innermost module.
    module = unit if ("nccl" in row["name"] and not row.get("within")) or unit == "" else unit + (".attention.wq" if row["args"]["graph node id"] % 2 else "._checkpoint_wrapped_module.mlp")
    if style == "module_fqn":
        row["args"]["module_fqn"] = module
    else:
        row["args"]["str"] = "L." + module
    if section == "backward" and style == "phase":
        row["args"]["autograd_phase"] = "backward"


def capture(document, steps, seed=1, annotations=None, graphs=1):
    """The document with these steps captured. `annotations`: None, "module_fqn", "phase", "forward". `graphs`: launches of a step."""
    rng = random.Random(seed)
    document = dict(document, traceEvents=[dict(row, args=dict(row.get("args", {}))) for row in document["traceEvents"]])
    marks = steps_of(document["traceEvents"])
    gone = set()
    for number in steps:
        begin, end = marks[number]
        work, launches = captured_work(document, begin, end)
        work.sort(key=lambda row: launches[row["args"]["correlation"]]["ts"])
        kept = {row["args"]["correlation"] for row in document["traceEvents"]
                if row.get("cat") in DEVICE} - {row["args"]["correlation"] for row in work}
        first = min(launches[row["args"]["correlation"]]["ts"] for row in work)
        last = max(launches[row["args"]["correlation"]]["ts"] + launches[row["args"]["correlation"]]["dur"] for row in work)
        host = launches[work[0]["args"]["correlation"]]
        replaced = {row["args"]["correlation"] for row in work}
        for i, row in enumerate(document["traceEvents"]):
            category = row.get("cat")
            within = begin <= row.get("ts", 0) < end
            if not within or category in DEVICE or row["name"].startswith("ProfilerStep#"):
                continue
            if category in RUNTIME:
                # What the captured kernels did not need stays: the optimizer's launches, waits of the host.
                if row["args"].get("correlation") in replaced or first <= row["ts"] <= last and row["args"].get("correlation") not in kept:
                    gone.add(i)
            elif category in ("ac2g", "gpu_user_annotation", "cuda_sync"):
                if category != "ac2g" or row.get("id") in replaced:
                    gone.add(i)
            elif first - 200 <= row["ts"] <= last + 200 and not row["name"].startswith("Optimizer."):
                gone.add(i)
            elif row["name"].startswith(("FSDP::", "shardlens::", "nccl:")) or category in ("shardlens", "fwdbwd"):
                gone.add(i)
        streams = sorted({row["tid"] for row in work})
        others = streams[:]
        rng.shuffle(others)
        renamed = dict(zip(streams, (100 + stream for stream in others)))
        jitter(work, rng)
        size = -(-len(work) // graphs)
        for node, row in enumerate(work):
            owner = owner_of(row, document)
            correlation = 3_000_000 + number * 100 + node // size
            row["tid"] = row["args"]["stream"] = renamed[row["tid"]]
            row["args"]["correlation"] = correlation
            row["args"]["graph node id"] = (7 << 32) + node
            for key in COLLECTIVE_ARGUMENTS:
                row["args"].pop(key, None)
            if annotations and owner:
                annotate(row, owner, "phase" if annotations == "phase" else "module_fqn", annotations == "forward")
        for graph in range(-(-len(work) // size)):
            document["traceEvents"].append({"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": host["pid"], "tid": host["tid"],
                                            "ts": round(first + graph * 3, 3), "dur": 2.0,
                                            "args": {"cbid": 311, "correlation": 3_000_000 + number * 100 + graph}})
    document["traceEvents"] = [row for i, row in enumerate(document["traceEvents"]) if i not in gone]
    return without_owners(document)


US = 1
COMPUTE, GATHER, REDUCE, REPLICAS, TENSOR, TOKENS = 7, 20, 24, 28, 32, 36
NCCL = {"all_gather": ("_allgather_base", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        "reduce_scatter": ("_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        "all_reduce": ("allreduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        "all_to_all": ("all_to_allv", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")}
FORWARD = ("rms_norm_kernel", "nvjet_qkv", "rope_kernel", "flash_fwd_kernel", "nvjet_out", "add_kernel", "nvjet_up", "silu_kernel", "nvjet_down")
BACKWARD = ("nvjet_down_dgrad", "nvjet_down_wgrad", "silu_backward_kernel", "nvjet_up_dgrad", "nvjet_up_wgrad", "flash_bwd_kernel", "rope_kernel",
            "nvjet_qkv_dgrad", "nvjet_qkv_wgrad", "add_kernel", "rms_norm_backward_kernel")

SHAPES = {
    "plain": {},
    "deep": {"layers": 12},
    "one_layer": {"layers": 1},
    "kept": {"reshard": False},
    "explicit_prefetch": {"prefetch": 1},
    "prefetch_two": {"prefetch": 2, "layers": 6},
    "no_backward_prefetch": {"backward_prefetch": 0},
    "hsdp": {"replicate": 2},
    "hsdp_kept": {"replicate": 2, "reshard": False},
    "experts": {"experts": True},
    "experts_hsdp": {"experts": True, "replicate": 2, "layers": 3},
    "experts_prefetch": {"experts": True, "prefetch": 1},
    "tensor": {"tensor": True},
    "tensor_hsdp": {"tensor": True, "replicate": 2},
    "accumulate": {"microbatches": 2},
    "accumulate_sync_last": {"microbatches": 3, "sync_last": True},
    "accumulate_kept": {"microbatches": 2, "reshard": False},
    "two_graphs": {"graphs": 2},
    "five_graphs": {"graphs": 5, "layers": 5},
    "checkpointed": {"recompute": True},
    # As many collectives of tensor parallelism as a second microbatch would have of FSDP.
    "tensor_alike": {"tensor_alike": True},
    "slow_gathers": {"gather_us": 180},
    "slow_reductions": {"reduce_us": 240, "replicate": 2},
}


class Program:
    """One rank's eager trace of FSDP2 steps. Times are microseconds."""

    def __init__(self, shape, rank=0, ranks=2, seed=1):
        self.shape, self.rank, self.ranks = shape, rank, ranks
        self.rng = random.Random(f"{seed} {rank}")
        self.rows, self.correlation, self.sequence = [], 10, {}
        self.host, self.free = 5000.0 + 37 * rank, {}
        self.owner = [None, None]
        self.layers = [f"layers.{i}" for i in range(shape.get("layers", 4))]

    def row(self, category, name, pid, tid, begin, end, **args):
        self.rows.append({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": round(begin, 3), "dur": round(end - begin, 3), "args": args})
        return self.rows[-1]

    def launch(self, name, stream, length, after=0.0, category="kernel", **args):
        self.correlation += 1
        self.row("cuda_runtime", "cudaLaunchKernel", 1, 100, self.host, self.host + 2, correlation=self.correlation, cbid=211)
        start = max(self.host + 4, self.free.get(stream, 0) + 1, after)
        end = start + length * self.rng.uniform(0.9, 1.1)
        kernel = self.row(category, name, 0, stream, start, end, correlation=self.correlation, stream=stream, device=0, context=1, **args)
        kernel["owner"] = list(self.owner)
        self.free[stream] = end
        self.host += 2.5
        return end

    def collective(self, kind, stream, length, group, after=0.0):
        name, kernel = NCCL[kind]
        self.sequence[group] = self.sequence.get(group, -1) + 1
        return self.launch(kernel, stream, length, after, **{
            "Collective name": name, "In msg nelems": 1 << 16, "Out msg nelems": 1 << 17, "Group size": self.ranks, "dtype": "BFloat16",
            "Process Group Name": group, "Process Group Description": f"mesh_{group}", "Process Group Ranks": str(list(range(self.ranks))),
            "Seq": self.sequence[group]})

    def range(self, name):
        return HostRange(self, name)

    def groups_of(self, unit):
        """Names of the process groups that shard the unit's parameters."""
        return ("fsdp", "efsdp") if self.shape.get("experts") and unit else ("fsdp",)

    def gather(self, unit):
        if unit in self.gathered:
            return
        self.gathered[unit] = 0
        owner, self.owner = self.owner, [unit, self.owner[1]]
        with self.range(f"FSDP::all_gather ({unit})" if unit else "FSDP::all_gather"):
            for group in self.groups_of(unit):
                ready = self.launch("Memcpy DtoD (Device -> Device)", GATHER, 4, self.freed.get(unit, 0.0), "gpu_memcpy")
                self.gathered[unit] = self.collective("all_gather", GATHER, self.shape.get("gather_us", 40), group, ready)
        self.owner = owner

    def wait_for(self, unit):
        self.gather(unit)
        owner, self.owner = self.owner, [unit, self.owner[1]]
        if self.gathered[unit] is not None:
            with self.range(f"FSDP::all_gather_copy_out ({unit})" if unit else "FSDP::all_gather_copy_out"):
                self.launch("split_with_sizes_copy_out_contiguous_no_cast_kernel", COMPUTE, 5, self.gathered[unit])
            self.gathered[unit] = None
        self.owner = owner

    def reduce(self, unit):
        owner, self.owner = self.owner, [unit, "backward"]
        with self.range(f"FSDP::post_backward_reduce ({unit})" if unit else "FSDP::post_backward_reduce"):
            for group in self.groups_of(unit):
                ready = self.launch("chunk_cat_cuda_kernel", COMPUTE, 5)
                ready = self.collective("reduce_scatter", REDUCE, self.shape.get("reduce_us", 50), group, ready)
                if self.shape.get("replicate", 1) > 1:
                    self.collective("all_reduce", REPLICAS, 30, "replicate", ready)
        self.owner = owner

    def compute(self, names, unit, section):
        self.owner = [unit, section]
        for i, name in enumerate(names):
            if self.shape.get("tensor") and i in (1, len(names) - 1) and unit:
                done = self.collective("all_gather" if i == 1 else "reduce_scatter", TENSOR, 12, "tp", self.free.get(COMPUTE, 0))
                self.rows[-1]["within"] = True  # communication of a module in the unit, not of FSDP
                self.free[COMPUTE] = max(self.free.get(COMPUTE, 0), done)
            self.launch(name, COMPUTE, 10)
        if self.shape.get("tensor_alike"):
            kinds = ("all_gather",) if section == "forward" else ("all_gather", "reduce_scatter") if unit else ("reduce_scatter",)
            for kind in kinds if unit or names[0].startswith("nvjet_head_dgrad") or "embedding_kernel" in names else ():
                self.collective(kind, TENSOR, 12, "tp", self.free.get(COMPUTE, 0))
                self.rows[-1]["within"] = True
        self.owner = [None, None]

    def forward(self):
        order = self.layers
        self.owner = ["", "forward"]
        with self.range("FSDP::root_pre_forward"):  # in which the streams of gathers wait for what was launched before
            self.free[GATHER] = max(self.free.get(GATHER, 0), self.free.get(COMPUTE, 0))
        with self.range("FSDP::pre_forward"):
            self.wait_for("")
        self.compute(("embedding_kernel",), "", "forward")
        for i, unit in enumerate(order):
            self.owner = [unit, "forward"]
            with self.range(f"FSDP::pre_forward ({unit})"):
                self.wait_for(unit)
                for ahead in order[i + 1:i + 1 + self.shape.get("prefetch", 0)]:
                    with self.range(f"FSDP::forward_prefetch for {ahead}"):
                        self.gather(ahead)
            self.compute(FORWARD, unit, "forward")
            with self.range(f"FSDP::post_forward ({unit})"):
                if self.shape.get("reshard", True):
                    del self.gathered[unit]
                    self.freed[unit] = self.free[COMPUTE]  # FSDP2 waits for this before it gathers again
        self.compute(("rms_norm_kernel", "nvjet_head"), "", "forward")
        with self.range("FSDP::post_forward"):
            pass
        self.owner = [None, "loss"]
        for name in ("log_softmax_kernel", "nll_loss_kernel", "nll_loss_backward_kernel"):
            self.launch(name, COMPUTE, 6)

    def backward(self, reduces):
        self.owner = ["", "backward"]
        with self.range("FSDP::pre_backward"):
            self.wait_for("")
        self.compute(("nvjet_head_dgrad", "nvjet_head_wgrad", "rms_norm_backward_kernel"), "", "backward")
        order = list(reversed(self.layers))
        for i, unit in enumerate(order):
            self.owner = [unit, "backward"]
            with self.range(f"FSDP::pre_backward ({unit})"):
                self.wait_for(unit)
                for ahead in order[i + 1:i + 1 + self.shape.get("backward_prefetch", 1)]:
                    with self.range(f"FSDP::backward_prefetch for {ahead}"):
                        self.gather(ahead)
            self.compute((*(FORWARD if self.shape.get("recompute") else ()), *BACKWARD), unit, "backward")
            with self.range(f"FSDP::post_backward_reshard ({unit})"):
                del self.gathered[unit]
            if reduces:
                self.reduce(unit)
        self.compute(("embedding_backward_kernel",), "", "backward")
        with self.range("FSDP::root_post_backward_callback"):
            with self.range("FSDP::post_backward_reshard"):
                self.gathered.clear()
            if reduces:
                self.reduce("")

    def step(self, number):
        begin = self.host
        self.gathered, self.freed = {}, {}
        microbatches = self.shape.get("microbatches", 1)
        for i in range(microbatches):
            self.forward()
            self.backward(i + 1 == microbatches or not self.shape.get("sync_last"))
        self.owner = [None, "optimizer"]
        with self.range("Optimizer.step#AdamW.step"):
            ready = max(self.free.values())
            for _ in range(3):
                ready = self.launch("multi_tensor_adam_kernel", COMPUTE, 20, ready)
        self.host += 20
        self.row("user_annotation", f"ProfilerStep#{number}", 1, 100, begin - 1, self.host)
        self.host = max(self.host, max(self.free.values())) + 30

    def document(self):
        return {"schemaVersion": 1, "baseTimeNanoseconds": 0,
                "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.ranks, "pg_count": 1, "pg_config": [
                    {"pg_name": name, "pg_desc": f"mesh_{name}", "pg_size": self.ranks, "ranks": list(range(self.ranks))} for name in sorted(self.sequence)]},
                "traceEvents": self.rows}


class HostRange:
    def __init__(self, program, name):
        self.program, self.name = program, name

    def __enter__(self):
        self.begin = self.program.host
        self.program.host += 1

    def __exit__(self, *_):
        self.program.host += 1
        self.program.row("user_annotation", self.name, 1, 100, self.begin, self.program.host)


def generate(name, ranks=2, seed=1, steps=3):
    """Eager documents of a shape, by rank; with owners of the rows."""
    out = []
    for rank in range(ranks):
        program = Program(SHAPES[name], rank, ranks, f"{name} {seed}")
        for number in range(steps):
            program.step(number)
        out.append(program.document())
    return out


def plan_of(name, ranks=2):
    """Plan and model of a shape, as plan.json and model.json have them, and the number of ranks of its mesh."""
    shape = SHAPES[name]
    layers = [f"layers.{i}" for i in range(shape.get("layers", 4))]
    groups = {"groups": [{"parameters": ["**.experts.**"], "mesh": "expert"}, {"parameters": ["**"], "mesh": "dense"}]} if shape.get("experts") else {}
    mesh = {"replicate": shape.get("replicate", 1), "shard": ranks}
    if groups:
        mesh = {"replicate": shape.get("replicate", 1), "shard": 2 * ranks, "expert": 2}
    if any(key.startswith("tensor") for key in shape):
        mesh["tensor"] = 2
    plan = {"version": 1, "dialect": "fsdp2", "layout": "per_parameter", "mesh": mesh,
            "units": [{"modules": "", "reshard_after_forward": False}] + [{"modules": layer, "reshard_after_forward": shape.get("reshard", True), **groups} for layer in layers],
            "forward_prefetch": shape.get("prefetch", 0), "activation_checkpointing": layers if shape.get("recompute") else []}
    if shape.get("backward_prefetch") == 0:
        plan["backward_prefetch"] = "none"
    modules = [("", "Model"), ("embed", "Embedding"), ("layers", "ModuleList")]
    parameters = [("embed.weight", [64, 16])]
    for layer in layers:
        modules += [(layer, "Block"), (f"{layer}.attention", "Linear"), (f"{layer}.mlp", "Module")]
        parameters.append((f"{layer}.attention.weight", [16, 16]))
        if groups:
            modules.append((f"{layer}.mlp.experts", "Experts"))
            parameters.append((f"{layer}.mlp.experts.weight", [4, 16, 16]))
        else:
            parameters.append((f"{layer}.mlp.weight", [16, 16]))
    modules += [("norm", "RMSNorm"), ("head", "Linear")]
    parameters += [("norm.weight", [16]), ("head.weight", [64, 16])]
    model = {"shardlens_model": 1, "name": "Model", "dtype": "bfloat16", "origin": {"made_by": "shardlens.record"}, "inputs": [], "buffers": [],
             "modules": [{"fqn": fqn, "class": kind, "forward": kind != "ModuleList"} for fqn, kind in modules],
             "parameters": [{"name": fqn, "shape": size, "dtype": "bfloat16", "requires_grad": True} for fqn, size in parameters]}
    return plan, model, mesh["replicate"] * mesh["shard"] * mesh.get("tensor", 1)


def without_owners(document):
    return dict(document, traceEvents=[{key: value for key, value in row.items() if key not in ("owner", "within")} for row in document["traceEvents"]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("capture")
    one.add_argument("trace", type=Path)
    one.add_argument("out", type=Path)
    one.add_argument("--steps")
    one.add_argument("--annotate", choices=("module_fqn", "phase", "forward"))
    many = commands.add_parser("shape")
    many.add_argument("name", choices=SHAPES)
    many.add_argument("out", type=Path)
    many.add_argument("--ranks", type=int, default=2)
    for each in (one, many):
        each.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.command == "capture":
        document = read(options.trace)
        numbers = sorted(steps_of(document["traceEvents"]))
        chosen = [int(each) for each in options.steps.split(",")] if options.steps else numbers[1:]
        write(capture(document, chosen, options.seed, options.annotate), options.out)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for rank, document in enumerate(generate(options.name, options.ranks, options.seed)):
        write(without_owners(document), options.out / f"rank{rank}.json.gz")


if __name__ == "__main__":
    main()
