"""The mesh of a live model in the words of a plan file, in worlds of torch's "fake" backend: rank 0's process groups without other processes.

DTensor keeps meshes of earlier worlds that have the same axes and ranks, so tests with DTensors name theirs differently.
"""
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed.fsdp._fully_shard._fsdp_common as fsdp_common  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from shardlens import live_mesh  # noqa: E402
from shardlens.live_model import model_of  # noqa: E402
from shardlens.live_plan import NoPlan, plan_of  # noqa: E402


@pytest.fixture
def world():
    """A function that begins a world of so many ranks."""
    yield lambda ranks: dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    dist.destroy_process_group()


class Experts(torch.nn.Module):
    def __init__(self, experts=4):
        super().__init__()
        self.w1 = torch.nn.Parameter(torch.zeros(experts, 8, 6))
        self.w2 = torch.nn.Parameter(torch.zeros(experts, 6, 8))

    def divide(self, mesh, dim=0):
        for name, parameter in list(self.named_parameters()):
            setattr(self, name, torch.nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(dim)], src_data_rank=None)))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up, self.down = torch.nn.Linear(8, 12), torch.nn.Linear(12, 8)
        self.experts = Experts()

    def forward(self, x):
        return self.down(self.up(self.norm(x)))


class Model(torch.nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 8)
        self.layers = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.head = torch.nn.Linear(8, 10, bias=False)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def shard(model, mesh, experts=None, dim=0):
    """Blocks and root over `mesh`; experts as units of their own over `experts`, along `dim`."""
    for layer in model.layers:
        if experts is not None:
            fully_shard(layer.experts, mesh=experts, shard_placement_fn=lambda _: Shard(dim))
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def groups_of(plan):
    return {entry["modules"]: entry["groups"] for entry in plan["units"] if "groups" in entry}


def test_replicas_of_shards_are_as_before(world):
    world(8)
    plan = plan_of(shard(Model(), init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))))
    assert plan["mesh"] == {"replicate": 2, "shard": 4}
    assert "tensor_parallel" not in plan
    assert not groups_of(plan)


def test_tensor_parallelism_has_styles_of_modules(world):
    world(8)
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
    model = Model()
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}, src_data_rank=None)
    parallelize_module(model, mesh["tp"], {"embed": RowwiseParallel()}, src_data_rank=None)
    shard(model, mesh["replicate", "shard"])
    plan = plan_of(model)
    assert plan["mesh"] == {"replicate": 2, "shard": 2, "tensor": 2}
    assert plan["tensor_parallel"] == {"layers.*.up": "column", "layers.*.down": "row", "embed": "vocabulary"}
    assert not groups_of(plan)
    shapes = {row["name"]: row["shape"] for row in model_of(model)["parameters"]}
    assert shapes["layers.0.up.weight"] == [12, 8] and shapes["layers.2.down.weight"] == [8, 12] and shapes["embed.weight"] == [10, 8]


def test_a_style_of_some_modules_names_them(world):
    world(4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = Model()
    parallelize_module(model.layers[1], mesh["tp"], {"up": ColwiseParallel()}, src_data_rank=None)
    model.layers[0].experts.w1 = torch.nn.Parameter(distribute_tensor(model.layers[0].experts.w1.data, mesh["tp"], [Shard(2)], src_data_rank=None))
    model.layers[0].norm.weight = torch.nn.Parameter(distribute_tensor(model.layers[0].norm.weight.data, mesh["tp"], [Replicate()], src_data_rank=None))
    plan = plan_of(shard(model, mesh["dp"]))
    assert plan["mesh"] == {"replicate": 1, "shard": 2, "tensor": 2}
    assert plan["tensor_parallel"] == {"layers.1.up": "column", "layers.0.experts.w1": 2}


@pytest.mark.parametrize("dim", (0, 1))
def test_experts_have_a_mesh_of_their_own(world, dim):
    world(8)
    dense = init_device_mesh("cpu", (8,), mesh_dim_names=("dp",))
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("efsdp", "ep"))
    model = Model()
    for layer in model.layers:
        layer.experts.divide(mesh["ep"])
    plan = plan_of(shard(model, dense, mesh["efsdp"], dim))
    assert plan["mesh"] == {"replicate": 1, "shard": 8, "expert": 4}
    assert groups_of(plan) == {f"layers.{i}.experts": [{"parameters": ["**"], "mesh": "expert", "shard_dim": dim}] for i in range(3)}
    assert {tuple(row["shape"]) for row in model_of(model)["parameters"] if row["name"].endswith("experts.w1")} == {(4, 8, 6)}


def test_tensor_and_expert_parallelism_share_the_ranks(world):
    world(8)
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp_shard_cp", "tp_of_all"))
    experts = init_device_mesh("cpu", (2, 4), mesh_dim_names=("efsdp", "ep_of_all"))
    init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_shard", "cp", "tp_of_all"))
    model = Model()
    for layer in model.layers:
        layer.experts.divide(experts["ep_of_all"])
        parallelize_module(layer, mesh["tp_of_all"], {"up": ColwiseParallel(), "down": RowwiseParallel()}, src_data_rank=None)
    plan = plan_of(shard(model, mesh["dp_shard_cp"], experts["efsdp"]))
    assert plan["mesh"] == {"replicate": 1, "shard": 2, "context": 2, "tensor": 2, "expert": 4}


def test_context_parallelism_is_part_of_what_shards(world):
    world(8)
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp_shard", "cp"))
    plan = plan_of(shard(Model(), mesh["dp_shard", "cp"]._flatten("dp_shard_cp")))
    assert plan["mesh"] == {"replicate": 1, "shard": 2, "context": 4}


def test_context_parallelism_may_have_all_ranks(world):
    """PyTorch gives such an axis the default group."""
    world(4)
    all_ranks = init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))
    plan = plan_of(shard(Model(), init_device_mesh("cpu", (4,), mesh_dim_names=("dp_shard_cp",))))
    assert plan["mesh"] == {"replicate": 1, "shard": 1, "context": 4}
    del all_ranks


def test_wrappers_that_fully_shard_subclasses_are_wrappers(world):
    """checkpoint_wrapper or torch.compile before fully_shard, which makes FSDPCheckpointWrapper and FSDPOptimizedModule of them."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    world(2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    for wrap, checkpointed in ((checkpoint_wrapper, True), (torch.compile, False)):
        for before in (True, False):
            model = Model(2)
            for i in range(2):
                if before:
                    model.layers[i] = wrap(model.layers[i])
                fully_shard(model.layers[i], mesh=mesh)
                if not before:
                    model.layers[i] = wrap(model.layers[i])
            fully_shard(model, mesh=mesh)
            plan = plan_of(model)
            assert plan["activation_checkpointing"] == (["layers.0", "layers.1"] if checkpointed else [])
            assert [unit["modules"] for unit in plan["units"]] == ["", "layers.0", "layers.1"]
            classes = {row["fqn"]: row["class"] for row in model_of(model)["modules"]}
            assert classes["layers.0"] == "Block" and classes["layers.0.up"] == "Linear"


def test_other_arrangements_have_no_plan(world):
    world(8)
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("tp", "dp"))  # tensor parallelism outermost
    model = Model()
    parallelize_module(model.layers[0], mesh["tp"], {"up": ColwiseParallel()}, src_data_rank=None)
    shard(model, mesh["dp"])
    with pytest.raises(NoPlan, match=r"tensor parallelism is over the ranks 0, 4; a plan file needs ranks that are 1 apart"):
        plan_of(model)
    other = Model()
    for layer in other.layers:
        fully_shard(layer, mesh=mesh["tp"])
    fully_shard(other, mesh=mesh["dp"])
    with pytest.raises(NoPlan, match=r"the unit 'layers.0' is sharded over other ranks than ''"):
        plan_of(other)


class Group:
    """What groups_of() reads of a UnitMesh."""

    def __init__(self, dims, expert=None):
        self.shard_dims, self.expert = dims, expert


def test_parameters_of_a_unit_may_be_in_several_groups():
    dense = Group({"layers.0.attention.weight": 0, "layers.0.moe.router.weight": 0, "layers.0.moe.shared.weight": 0})
    experts = Group({"layers.0.moe.experts.w1": 0, "layers.0.moe.experts.w2": 1}, expert=[0, 1])
    assert live_mesh.groups_of([dense], False) is None
    assert live_mesh.groups_of([dense, experts], True) == [
        {"parameters": ["layers.0.moe.experts.w1"], "mesh": "expert", "shard_dim": 0},
        {"parameters": ["layers.0.moe.experts.**"], "mesh": "expert", "shard_dim": 1},
        {"parameters": ["**"], "mesh": "dense", "shard_dim": 0},
    ]
    # Parameters with the name of experts that are not divided: the default would divide them.
    whole = Group({"layers.0.moe.experts.w1": 0})
    assert live_mesh.groups_of([whole], True) == [{"parameters": ["**"], "mesh": "dense", "shard_dim": 0}]
    assert live_mesh.groups_of([whole], False) is None


@pytest.mark.skipif(not hasattr(fsdp_common, "ShardPlacementResult"), reason="this torch has one group of parameters in a unit (several from 2.13 on)")
def test_experts_in_the_unit_of_their_block_are_a_group(world):
    world(8)
    mesh, dp = init_device_mesh("cpu", (4, 2), mesh_dim_names=("efsdp", "ep")), init_device_mesh("cpu", (8,), mesh_dim_names=("dp",))
    infos = [fsdp_common.FSDPMeshInfo(mesh=each, shard_mesh_dim=0) for each in (dp, mesh["efsdp"])]
    model = Model()
    for layer in model.layers:
        layer.experts.divide(mesh["ep"])
        experts = {id(p) for p in layer.experts.parameters()}
        fully_shard(layer, mesh=dp, shard_placement_fn=lambda p, own=experts: fsdp_common.ShardPlacementResult(placement=Shard(0), mesh_info=infos[id(p) in own]))
    fully_shard(model, mesh=dp)
    plan = plan_of(model)
    assert plan["mesh"] == {"replicate": 1, "shard": 8, "expert": 2}
    assert [unit["modules"] for unit in plan["units"]] == ["", "layers.0", "layers.1", "layers.2"]
    assert plan["units"][2]["groups"] == [
        {"parameters": ["layers.1.experts.**"], "mesh": "expert", "shard_dim": 0},
        {"parameters": ["**"], "mesh": "dense", "shard_dim": 0},
    ]
    shapes = {row["name"]: row["shape"] for row in model_of(model)["parameters"]}
    assert shapes["layers.0.experts.w1"] == [4, 8, 6]
