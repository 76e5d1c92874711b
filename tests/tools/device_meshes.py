#!/usr/bin/env python3
"""Records the ranks in the groups of 200 random meshes, as torch's DeviceMesh makes them: tests/data/meshes/device_meshes.json; and which parts of a
parameter each rank has, as DTensor and FSDP2 divide it: tests/data/meshes/dtensor_boxes.json.

    device_meshes.py [OUT]      writes the files into a directory (needs PyTorch, a minute)
    device_meshes.py --check    makes them again and compares them with the committed ones; exit 1 if they differ

A mesh has one to four axes of replicate, shard, context, tensor, outermost first, over 8 to 64 ranks. The experts' mesh is over the same ranks:
replicate outermost if the mesh has it, then expert_shard and expert, whose product is that of the mesh's other axes. "groups" and "expert_groups"
have an entry for each axis and for some flattened ones ("shard,context" whenever both exist, and one more at random). An entry lists the groups by
their first member, the members in the order of their ranks in the group.

No member is computed here: every rank makes both meshes in a world of its own (the "fake" backend, which needs no second process) and asks
torch.distributed who is in the groups that DeviceMesh gave it. All members of a group must give the same answer.

A parameter is distributed over `tensor` (or `expert`, along dimension 0) and then sharded by FSDP2 over `shard` (or `expert_shard`), with or without
replicas: "mesh" has the sizes of replicate, of the axis that shards and of the one that divides, "dim" is the dimension that is divided (null: none),
"shard_dim" the one that is sharded. "boxes" has [begin, end) of each dimension for every rank, null if it has no elements: each element of the
parameter is its own number, so the rank's tensor says which it has.
"""
import argparse
import json
import math
import random
import sys
from pathlib import Path

COMMITTED = Path(__file__).resolve().parent.parent / "data/meshes"
AXES = ("replicate", "shard", "context", "tensor")
SIZES = (1, 2, 2, 2, 3, 4, 4, 5, 6, 7, 8, 12, 16, 32)
SEED, MESHES, PARAMETERS = 2026, 200, 120


def some_of(rng, names, at_least):
    """At random as many of the names, in their order."""
    chosen = set(rng.sample(names, rng.randint(at_least, len(names))))
    return tuple(name for name in names if name in chosen)


def random_mesh(rng):
    """The axes of a mesh and of the experts' mesh, as (name, size), and which of each are flattened."""
    count = rng.choices((1, 2, 3, 4), (1, 2, 3, 6))[0]
    while True:
        names = set(rng.sample(AXES, count))
        axes = [(name, rng.choice(SIZES)) for name in AXES if name in names]
        if 8 <= math.prod(size for _, size in axes) <= 64:
            break
    inner = math.prod(size for name, size in axes if name != "replicate")
    expert = rng.choice([size for size in range(1, inner + 1) if inner % size == 0])
    experts = [axis for axis in axes if axis[0] == "replicate"] + [("expert_shard", inner // expert), ("expert", expert)]
    flattened = {some_of(rng, [name for name, _ in axes], 2)} if len(axes) > 1 else set()
    if {"shard", "context"} <= names:
        flattened.add(("shard", "context"))
    return axes, sorted(flattened), experts, [some_of(rng, [name for name, _ in experts], 2)]


def random_meshes():
    rng, found = random.Random(SEED), []
    while len(found) < MESHES:
        mesh = random_mesh(rng)
        if all(mesh[0] != other[0] or mesh[2] != other[2] for other in found):
            found.append(mesh)
    return found


def groups_of_rank(axes, flattened):
    """The members of this rank's group, by name of its axis, or by names of its axes if they are flattened."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", tuple(size for _, size in axes), mesh_dim_names=tuple(name for name, _ in axes))
    groups = {name: mesh.get_group(name) for name, _ in axes}
    groups.update({",".join(names): mesh[names]._flatten().get_group() for names in flattened})
    return {name: dist.get_process_group_ranks(group) for name, group in groups.items()}


def groups_of_world(axes, flattened, experts, flattened_experts):
    """The groups of both meshes as every rank sees them."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    world = math.prod(size for _, size in axes)
    found = ({}, {})
    for rank in range(world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        try:
            for groups, mesh in zip(found, ((axes, flattened), (experts, flattened_experts))):
                for name, members in groups_of_rank(*mesh).items():
                    groups.setdefault(name, {})[rank] = members
        finally:
            dist.destroy_process_group()
    for groups in found:
        for name, of_rank in groups.items():
            assert all(rank in members and of_rank[member] == members for rank, members in of_rank.items() for member in members), (axes, name, of_rank)
            groups[name] = [list(members) for members in dict.fromkeys(map(tuple, of_rank.values()))]
    return found


def random_parameters():
    rng, found = random.Random(SEED), []
    while len(found) < PARAMETERS:
        mesh = [rng.choice((1, 1, 2)), rng.choice((1, 2, 3, 4)), rng.choice((1, 2, 2, 3, 4))]
        shape = [rng.randint(1, 13) for _ in range(rng.choice((1, 2, 2, 3)))]
        dim = rng.choice([None, *range(len(shape))]) if mesh[2] > 1 else None
        shard_dim = rng.choice((0, 0, 0, *range(len(shape))))
        if shard_dim:  # FSDP2 divides only dimension 0 unevenly
            shape[shard_dim] = mesh[1] * mesh[2] * rng.randint(1, 3)
        found.append({"mesh": mesh, "shape": shape, "dim": dim, "shard_dim": shard_dim})
    return found


def boxes_of(parameter):
    """[begin, end) in each dimension of what every rank holds; None: nothing."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    replicate, shard, divide = parameter["mesh"]
    world, boxes = math.prod(parameter["mesh"]), []
    for rank in range(world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        try:
            mesh = init_device_mesh("cpu", (replicate, shard, divide), mesh_dim_names=("replicate", "shard", "divide"))
            module = torch.nn.Module()
            value = torch.arange(math.prod(parameter["shape"]), dtype=torch.float32).reshape(parameter["shape"])
            if divide > 1:
                placement = Replicate() if parameter["dim"] is None else Shard(parameter["dim"])
                value = distribute_tensor(value, mesh["divide"], [placement], src_data_rank=None)
            module.register_parameter("weight", torch.nn.Parameter(value))
            fully_shard(module, mesh=mesh["replicate", "shard"] if replicate > 1 else mesh["shard"],
                        shard_placement_fn=lambda _: Shard(parameter["shard_dim"]))
            local = module.weight.to_local().long()
            if local.numel() == 0:
                boxes.append(None)
                continue
            indices = torch.unravel_index(local.flatten(), parameter["shape"])
            boxes.append([[int(of.min()), int(of.max()) + 1] for of in indices])
            assert [end - begin for begin, end in boxes[-1]] == list(local.shape), (parameter, rank)
        finally:
            dist.destroy_process_group()
    return boxes


def fixtures():
    """The contents of each file, by name."""
    import torch

    meshes = []
    for axes, flattened, experts, flattened_experts in random_meshes():
        groups, expert_groups = groups_of_world(axes, flattened, experts, flattened_experts)
        meshes.append({"axes": axes, "groups": groups, "expert_axes": experts, "expert_groups": expert_groups})
    parameters = [{**each, "boxes": boxes_of(each)} for each in random_parameters()]
    return {"device_meshes.json": {"torch": torch.__version__, "meshes": meshes}, "dtensor_boxes.json": {"torch": torch.__version__, "parameters": parameters}}


def text_of(made, rows):
    """A line for each row."""
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in made[rows])
    return f'{{"torch":{json.dumps(made["torch"])},"{rows}":[\n{lines}\n]}}\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=COMMITTED)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    failed = False
    for name, made in fixtures().items():
        rows = next(key for key in made if key != "torch")
        text, path = text_of(made, rows), options.out / name
        if not options.check:
            options.out.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            continue
        committed, again = json.loads(path.read_text()), json.loads(text)
        different = [at for at, (old, new) in enumerate(zip(committed[rows], again[rows])) if old != new]
        for at in different[:10]:
            print(f"{rows} {at} differs\n  {name}: {json.dumps(committed[rows][at])}\n  torch {made['torch']}: {json.dumps(again[rows][at])}")
        failed = failed or bool(different) or len(committed[rows]) != len(again[rows])
        print(f"{len(again[rows])} {rows} of torch {made['torch']}, {len(different)} other than in {path} (torch {committed['torch']})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
