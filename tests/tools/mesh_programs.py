#!/usr/bin/env python3
"""Runs FSDP2 programs on meshes of four Gloo ranks, and compares what Shardlens says of their groups and parameters with what DTensor says.

    mesh_programs.py OUT [NAME…] [--again] [--all]     $SHARDLENS_PROGRAM names the program
    mesh_programs.py OUT [NAME…] --changes             what two changes of a plan do to a step, predicted and measured

tensor            FSDP2 over 2 around DTensor's tensor parallelism over 2 (ColwiseParallel, RowwiseParallel)
experts           FSDP2 over 4; the experts are a unit of their own, a DTensor over ep 2, sharded by FSDP2 over efsdp 2
experts-columns   likewise, sharded by FSDP2 along dim 1, as torchtitan does with few experts
experts-in-block  likewise, but a block is one unit with two groups of parameters: all but the experts over 4, the experts over efsdp 2 (torch 2.13)
hybrid            FSDP2 with two replicas of two shards

Each is recorded with shardlens.record into OUT/NAME/run, two steps to warm up and three that are recorded. Rank by rank OUT/NAME/dtensor.json has
the box of each parameter that the rank holds: compute_local_shape_and_global_offset of the parameter's mesh and placements, after a check that this
part of the full tensor is what the rank has. Then `plan --from-trace`, the same with --parameters, and `plan --plan` with the plan that the recorder
wrote are asked, and a table says of how many parameters all ranks' elements are those of DTensor. Programs that were recorded are not run again
without --again. --all lists every parameter, otherwise one wrong one. Exit code 1 if something is wrong.

With --changes each program is also run with its parameters kept after forward, and with its blocks merged into one unit: steps of the three are interleaved,
without a profiler, so that what else the machine does falls on all of them. The table has the change of the median step in per cent with the quartiles of
the differences between steps of one turn, and what `simulate --workload` predicts for the changed plan from the recorded run. Exit code 1 if a change
whose quartiles are on one side of zero is predicted with the other sign. It needs a quiet machine.
"""
import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

from shardlens import program  # noqa: E402

WORLD, WARMUP, STEPS, TURNS = 4, 2, 3, 40
CHANGES = ("keep", "merge")
# Width, hidden width, experts, vocabulary, blocks, samples, tokens of a sample. Parts of H, E and V are odd, so that chunks are of unequal size.
D, H, E, V, BLOCKS, BATCH, SEQ = 48, 90, 6, 257, 3, 4, 33
NAMES = ("tensor", "experts", "experts-columns", "experts-in-block", "hybrid")


def build(name, change=None):
    """The sharded model, and the index of this rank's data: ranks that compute the same samples have the same."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.nn.functional import all_to_all_single
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(D, H), nn.Linear(H, D)

        def forward(self, x):
            return self.down(F.gelu(self.up(x)))

    class Experts(nn.Module):
        """Experts with equal routing: each rank of the mesh axis `ep`, and each expert of a rank, gets the same number of a rank's tokens."""

        def __init__(self, ep):
            super().__init__()
            self.group = ep.get_group()
            self.w1, self.w2 = (nn.Parameter(distribute_tensor(torch.randn(E, *shape) / 8, ep, [Shard(0)])) for shape in ((D, H), (H, D)))

        def forward(self, x):
            tokens = x.flatten(0, 1).contiguous()
            sent = all_to_all_single(torch.empty_like(tokens), tokens, group=self.group)
            w1, w2 = (w.to_local() if isinstance(w, DTensor) else w for w in (self.w1, self.w2))
            done = torch.bmm(F.gelu(torch.bmm(sent.view(len(w1), -1, D), w1)), w2).flatten(0, 1)
            return all_to_all_single(torch.empty_like(done), done, group=self.group).view(x.shape)

    class Block(nn.Module):
        def __init__(self, ep):
            super().__init__()
            self.norm = nn.LayerNorm(D)
            self.mix = nn.Linear(D, D)
            self.mlp = MLP() if ep is None else Experts(ep)

        def forward(self, x):
            x = self.norm(x)
            return x + self.mlp(torch.tanh(self.mix(x)))

    class Model(nn.Module):
        def __init__(self, ep=None):
            super().__init__()
            self.embed, self.norm, self.head = nn.Embedding(V, D), nn.LayerNorm(D), nn.Linear(D, V, bias=False)
            self.layers = nn.ModuleList(Block(ep) for _ in range(BLOCKS))

        def forward(self, x):
            x = self.embed(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    axes = {"tensor": ("dp", "tp"), "hybrid": ("replicate", "shard")}.get(name, ("efsdp", "ep"))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=axes)
    torch.manual_seed(0)  # the same values on all ranks
    model, data = Model(mesh["ep"] if "ep" in axes else None), torch.distributed.get_rank()
    if name == "tensor":
        for layer in model.layers:
            parallelize_module(layer.mlp, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        units, data = mesh["dp"], mesh.get_local_rank("dp")
    elif name == "hybrid":
        units = mesh
    else:
        units = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("dp",))
    placement = None
    if name == "experts-in-block":
        placement = placement_of_experts(model, mesh["efsdp"], units)
    elif "ep" in axes:
        columns = (lambda parameter: Shard(1)) if name == "experts-columns" else None
        for layer in model.layers:
            fully_shard(layer.mlp, mesh=mesh["efsdp"], shard_placement_fn=columns, reshard_after_forward=change != "keep")
    for layer in [list(model.layers)] if change == "merge" else model.layers:
        fully_shard(layer, mesh=units, reshard_after_forward=change != "keep", **({"shard_placement_fn": placement} if placement else {}))
    return fully_shard(model, mesh=units), data


def has_groups():
    """Whether FSDP2 can shard parameters of one unit over several meshes."""
    from torch.distributed.fsdp._fully_shard import _fsdp_common

    return hasattr(_fsdp_common, "ShardPlacementResult")


def placement_of_experts(model, efsdp, dp):
    """A shard_placement_fn that shards the experts over `efsdp` and other parameters over `dp`."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
    from torch.distributed.tensor import Shard

    experts = {id(parameter) for layer in model.layers for parameter in layer.mlp.parameters()}
    infos = [FSDPMeshInfo(mesh=mesh, shard_mesh_dim=0) for mesh in (dp, efsdp)]
    return lambda parameter: ShardPlacementResult(placement=Shard(0), mesh_info=infos[id(parameter) in experts])


class Training:
    """A model with its optimizer and data."""

    def __init__(self, name, change=None):
        import torch

        self.model, data = build(name, change)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)  # DTensors of several meshes
        torch.manual_seed(data)

    def step(self):
        import torch
        import torch.nn.functional as F

        tokens = torch.randint(0, V, (BATCH, SEQ))
        loss = F.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def boxes(model):
    """By name: the parameter's shape, its placements, and [begin, end) in each dimension of what this rank holds."""
    import torch
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    found = {}
    for name, parameter in model.named_parameters():
        local = parameter.to_local()
        shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
        box = [[begin, begin + size] for begin, size in zip(offset, shape)]
        part = parameter.full_tensor()[tuple(slice(*ends) for ends in box)]
        assert torch.equal(part, local), f"{name}: the rank does not hold {box}"
        found[name] = {"shape": list(parameter.shape), "axes": parameter.device_mesh.mesh_dim_names, "placements": str(parameter.placements), "box": box}
    return found


def begin(rank, store):
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")  # of the profiler, and of several gathers for one full tensor
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)


def end():
    """Ends a process whose files are written."""
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads may still run when Python is torn down, which aborts the process


def work(rank, store, name, out):
    import torch.distributed as dist

    import shardlens

    begin(rank, store)
    training = Training(name)
    with shardlens.record(out / "run", model=training.model, optimizer=training.optimizer, warmup=WARMUP, steps=STEPS, force=True) as rec:
        for _ in range(WARMUP + STEPS):
            rec.step(training.step())
    ranks = [None] * WORLD
    dist.all_gather_object(ranks, boxes(training.model))
    if rank == 0:
        rows = {parameter: {**ranks[0][parameter], "box": [of[parameter]["box"] for of in ranks]} for parameter in ranks[0]}
        (out / "dtensor.json").write_text(json.dumps(rows, indent=1))
    end()


def measure(rank, store, name, out):
    """Steps of the program and of its changes, interleaved; OUT/NAME/changes.json has the seconds of each."""
    import torch.distributed as dist

    begin(rank, store)
    trainings = {change or "own": Training(name, change) for change in (None, *CHANGES)}
    seconds = {change: [] for change in trainings}
    for turn in range(WARMUP + TURNS):
        for change, training in trainings.items():
            dist.barrier()
            start = time.perf_counter()
            training.step()
            dist.barrier()
            if turn >= WARMUP:
                seconds[change].append(time.perf_counter() - start)
    if rank == 0:
        (out / "changes.json").write_text(json.dumps(seconds))
    end()


def record(name, out, what=work):
    import torch.multiprocessing as mp

    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(what, (os.path.join(directory, "store"), name, out), nprocs=WORLD)


def changed(plan, change):
    """The plan file with the change."""
    units = [unit for unit in plan["units"] if unit["modules"] != ""]
    if change == "keep":
        return {**plan, "reshard_after_forward": False, "units": [{**unit, "reshard_after_forward": False} for unit in plan["units"]]}
    of_experts = [unit for unit in units if len(unit.get("groups", [])) == 1]
    blocks = [unit["modules"] for unit in units if unit not in of_experts]
    experts = [glob for unit in units for group in unit.get("groups", [])[:-1] for glob in group["parameters"]]
    groups = {"groups": [{"parameters": experts, "mesh": "expert"}, {}]} if experts else {}
    return {**plan, "units": [*of_experts, {"modules": blocks, **groups}, {"modules": ""}]}


def per_cent(value):
    return f"{100 * value:+.1f} %"


def compared(name, out):
    """Prints measured and predicted changes. Returns whether the sign of one is wrong."""
    seconds, run = json.loads((out / "changes.json").read_text()), out / "run"
    own = json.loads((run / "plan.json").read_text())
    baseline = program.ask(["simulate", "--workload", run])
    measured = statistics.median(seconds["own"])
    print(f"{name}: {1e3 * measured:.1f} ms measured without a profiler; of the recorded run {1e-6 * baseline['baseline']['measured_step_ns']:.1f} ms, "
          f"simulated {per_cent(baseline['baseline']['error'])}")
    wrong = False
    for change in CHANGES:
        of_turns = [(b - a) / measured for a, b in zip(seconds["own"], seconds[change])]
        low, middle, high = statistics.quantiles(of_turns, n=4)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as plan:
            json.dump(changed(own, change), plan)
            plan.flush()
            predicted = program.ask(["simulate", "--workload", run, "--plan", plan.name])["step_ns"] / baseline["step_ns"] - 1
        certain = low > 0 or high < 0
        wrong = wrong or (certain and (predicted > 0) != (middle > 0))
        print(f"  {change:<6} measured {per_cent(statistics.median(seconds[change]) / measured - 1):>8} (quartiles {per_cent(low)} to {per_cent(high)}), "
              f"predicted {per_cent(predicted):>8}{'' if certain else '  (the measured sign is not certain)'}")
    return wrong


def asked(*arguments):
    """The program's output, or its message."""
    try:
        return program.ask(["plan", *arguments])
    except program.ShardlensError as error:
        return str(error)


def elements_of(shape, box):
    """The elements of a box, [begin, end) of each dimension, by their index in the row-major tensor."""
    indices = [0]
    for size, (begin, end) in zip(shape, box):
        indices = [index * size + at for index in indices for at in range(begin, end)]
    return set(indices)


def wrong_parameters(expected, answered):
    """(parameter, why) where what the program says of the ranks' elements is not what DTensor says."""
    said = {row["fqn"]: row for row in answered}
    for name, row in expected.items():
        if name not in said:
            yield name, "missing"
        elif said[name]["shape"] != row["shape"]:
            yield name, f"shape {said[name]['shape']}, DTensor {row['shape']}"
        else:
            held = [set() for _ in row["box"]]
            for part in said[name]["held"]:
                for rank in part["ranks"]:
                    for box in part["boxes"]:
                        held[rank] |= elements_of(row["shape"], box)
            if any(elements != elements_of(row["shape"], box) for elements, box in zip(held, row["box"])):
                ranges = "; ".join(f"ranks {part['ranks']} {part['boxes']}" for part in said[name]["held"])
                yield name, f"{ranges}; DTensor {row['axes']} {row['placements']} {row['box']}"


def judged(name, out, options):
    """Prints what is right and wrong of a program. Returns whether something is wrong."""
    expected, run = json.loads((out / "dtensor.json").read_text()), out / "run"
    description = json.loads((run / "run.json").read_text())
    groups = sorted({(group["description"], tuple(group["ranks"])) for group in description.get("groups", [])})
    print(f"\n{name}: {len(expected)} parameters; groups of rank 0 in run.json: {', '.join(f'{label} {list(ranks)}' for label, ranks in groups)}")
    for note in description.get("notes", []):
        print(f"  note of the recorder: {note}")
    plan = run / "plan.json"
    model = ["--model", run / "model.json"]
    questions = {"plan --from-trace": ["--from-trace", run], "plan --from-trace --parameters": ["--from-trace", run, "--parameters"],
                 "plan --from-trace --model --parameters": ["--from-trace", run, *model, "--parameters"]}
    if plan.exists():
        questions["plan --plan --parameters"] = [*model, "--plan", plan, "--world-size", WORLD, "--parameters"]
        print(f"  plan.json: mesh {json.dumps(json.loads(plan.read_text()).get('mesh'))}")
    else:
        print("  plan.json: none")
    failed = not plan.exists()
    for title, arguments in questions.items():
        answer = asked(*arguments)
        if isinstance(answer, str):
            failed = True
            print(f"  {title}: refused: {answer.splitlines()[-1]}")
            continue
        mesh = answer.get("mesh", answer.get("plan", {}).get("mesh"))
        about = f", world size {answer['world_size']}" if "world_size" in answer else ""
        print(f"  {title}: mesh {json.dumps(mesh)}{about}" + "".join(f"\n    {each['severity']}: {each['message']}" for each in answer.get("diagnostics", [])))
        if "parameters" in answer and "--parameters" in arguments:
            wrong = list(wrong_parameters(expected, answer["parameters"]))
            failed = failed or bool(wrong)
            print(f"    {len(expected) - len(wrong)} of {len(expected)} parameters as DTensor's")
            for parameter, why in wrong if options.all else wrong[:1]:
                print(f"    wrong: {parameter}: {why}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--changes", action="store_true")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"no program {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    failed = []
    for name in options.names or NAMES:
        out = options.out / name
        if name == "experts-in-block" and not has_groups():
            print(f"\n{name}: left out, since this torch has one group of parameters in a unit")
            continue
        if options.again or not (out / "dtensor.json").exists():
            record(name, out)
        if options.changes and (options.again or not (out / "changes.json").exists()):
            record(name, out, measure)
        if compared(name, out) if options.changes else judged(name, out, options):
            failed.append(name)
    print(f"\n{len(options.names or NAMES)} programs, wrong: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
