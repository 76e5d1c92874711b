"""What the recorder lists of parameters that a program gathers itself, on a mesh of four ranks without communication.

DTensor keeps meshes of earlier worlds that have the same axes and ranks, so each test names its own.
"""
import pytest
from shardlens.live_model import model_of
from shardlens.live_program_sharding import program_sharded

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402


@pytest.fixture
def ranks():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def sharded(model, mesh, placements):
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, placements, src_data_rank=None), requires_grad=parameter.requires_grad))
    return model


def rows(model):
    return {row.pop("name"): tuple(row.values()) for row in program_sharded(model)}


def test_parts_have_padding(ranks):
    model = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 3))
    model[1].bias.requires_grad_(False)
    assert rows(sharded(model, init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp_a",)), [Shard(0)])) == {
        "0.weight": (18, 4, 1, True), "0.bias": (3, 4, 1, True), "1.weight": (10, 4, 1, True), "1.bias": (1, 4, 1, False)}


def test_replicas_and_tensor_parallelism(ranks):
    replicas = sharded(nn.Linear(6, 10), init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate_b", "dp_shard_b")), [Replicate(), Shard(0)])
    assert rows(replicas) == {"weight": (30, 2, 2, True), "bias": (5, 2, 2, True)}
    divided = sharded(nn.Linear(8, 8, bias=False), init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard_c", "tp_c")), [Shard(0), Shard(1)])
    assert rows(divided) == {"weight": (16, 2, 1, True)}
    only_divided = sharded(nn.Linear(8, 8, bias=False), init_device_mesh("cpu", (4,), mesh_dim_names=("tp_d",)), [Shard(1)])
    assert rows(only_divided) == {}


def test_parametrized_parameters_keep_their_names(ranks):
    from torch.nn.utils import parametrize

    model = sharded(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp_e",)), [Shard(0)])
    before = model_of(model)
    parametrize.register_parametrization(model[0], "weight", nn.Identity(), unsafe=True)
    after = model_of(model)
    assert set(rows(model)) == {"0.weight", "0.bias"}
    assert sorted(row["name"] for row in after["parameters"]) == sorted(row["name"] for row in before["parameters"])
    assert [(m["fqn"], m["class"]) for m in after["modules"] if "parametrizations" not in m["fqn"]] == [(m["fqn"], m["class"]) for m in before["modules"]]
