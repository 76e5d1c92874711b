#!/usr/bin/env python3
"""Who is in the groups of 200 random meshes, as torch's DeviceMesh makes them: tests/data/meshes/device_meshes.json.

    device_meshes.py [OUT]      writes the file (needs PyTorch, a minute)
    device_meshes.py --check    makes it again and compares it with the committed one; exit 1 if they differ

A mesh has one to four axes of replicate, shard, context, tensor, outermost first, over 8 to 64 ranks. The experts' mesh is over the same ranks:
replicate outermost if the mesh has it, then expert_shard and expert, whose product is that of the mesh's other axes. "groups" and "expert_groups"
have an entry for each axis and for some flattened ones ("shard,context" whenever both exist, and one more at random). An entry lists the groups by
their first member, the members in the order of their ranks in the group.

No member is computed here: every rank makes both meshes in a world of its own (the "fake" backend, which needs no second process) and asks
torch.distributed who is in the groups that DeviceMesh gave it. All members of a group must give the same answer.
"""
import argparse
import json
import math
import random
import sys
from pathlib import Path

COMMITTED = Path(__file__).resolve().parent.parent / "data/meshes/device_meshes.json"
AXES = ("replicate", "shard", "context", "tensor")
SIZES = (1, 2, 2, 2, 3, 4, 4, 5, 6, 7, 8, 12, 16, 32)
SEED, MESHES = 2026, 200


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
    """By name of an axis, or names of flattened ones: the members of this rank's group."""
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


def fixture():
    import torch

    meshes = []
    for axes, flattened, experts, flattened_experts in random_meshes():
        groups, expert_groups = groups_of_world(axes, flattened, experts, flattened_experts)
        meshes.append({"axes": axes, "groups": groups, "expert_axes": experts, "expert_groups": expert_groups})
    return {"torch": torch.__version__, "meshes": meshes}


def text_of(made):
    """A line for each mesh."""
    lines = ",\n".join(json.dumps(mesh, separators=(",", ":")) for mesh in made["meshes"])
    return f'{{"torch":{json.dumps(made["torch"])},"meshes":[\n{lines}\n]}}\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=COMMITTED)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = text_of(fixture())
    if not options.check:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)
        return 0
    committed, made = json.loads(options.out.read_text()), json.loads(text)
    different = [at for at, (old, new) in enumerate(zip(committed["meshes"], made["meshes"])) if old != new]
    for at in different[:10]:
        print(f"mesh {at} differs\n  {options.out.name}: {json.dumps(committed['meshes'][at])}\n  torch {made['torch']}: {json.dumps(made['meshes'][at])}")
    same = not different and len(committed["meshes"]) == len(made["meshes"])
    print(f"{len(made['meshes'])} meshes of torch {made['torch']}, {len(different)} other than in {options.out} (torch {committed['torch']})")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
