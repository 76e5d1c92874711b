"""Settings that FSDP2 has from torch 2.13 and 2.15 on, in the plan of a live model: set by their methods, or as these set them where torch is older."""
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from shardlens.live_actions import ActionLog  # noqa: E402
from shardlens.live_plan import left_out, plan_of  # noqa: E402
from shardlens.live_units import fsdp2_units  # noqa: E402


@pytest.fixture
def model():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    made = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    fully_shard(made[0])
    yield fully_shard(made)
    dist.destroy_process_group()


def groups(module):
    return [unit.group for unit in fsdp2_units(module)]


def test_defaults_are_not_written(model):
    assert not {"keep_unsharded_storage", "reduce_scatter_unused_params", "reduce_scatter_max_input_buffers", "backward_finalization",
                "separate_reduce_scatter_group"} & set(plan_of(model))
    assert left_out(model) == []


def test_storage_is_kept_by_all_units_or_by_some(model):
    def keep(module, recurse):
        if hasattr(module, "set_keep_unsharded_storage"):
            return module.set_keep_unsharded_storage(True, recurse=recurse)
        for group in groups(module)[:None if recurse else 1]:
            for parameter in group.fsdp_params:
                parameter.keep_unsharded_storage = True

    keep(model[0], recurse=False)
    plan = plan_of(model)
    assert "keep_unsharded_storage" not in plan
    assert [unit["keep_unsharded_storage"] for unit in plan["units"] if unit["modules"] == "0"] == [True]
    assert [unit["keep_unsharded_storage"] for unit in plan["units"] if unit["modules"] == ""] == [False]
    keep(model, recurse=True)
    assert plan_of(model)["keep_unsharded_storage"] is True


def test_reductions_of_zeros_and_several_inputs(model):
    for group in groups(model):
        group.reduce_scatter_unused_params, group.reduce_scatter_max_input_buffers = True, 3
    plan = plan_of(model)
    assert plan["reduce_scatter_unused_params"] is True
    assert plan["reduce_scatter_max_input_buffers"] == 3


@pytest.mark.parametrize("sync, expected", [(True, "waits"), (False, "reduces")])
def test_who_ends_the_backward(model, sync, expected):
    log = ActionLog(model)
    log.recording = True
    manual = hasattr(model, "finalize_backward")
    if manual:
        model.set_manual_backward_finalization(True)
    model.set_requires_gradient_sync(sync)
    model(torch.ones(2, 4)).sum().backward()
    model.set_requires_gradient_sync(True)
    if manual:
        model.finalize_backward()
    else:  # what the log is asked for after the backward
        fsdp2_units(model)[0].state._state_ctx.manual_backward_finalization = True
    log.remove()
    assert log.failure is None
    assert plan_of(model, log)["backward_finalization"] == expected


def test_symmetric_memory_is_named(model):
    class SymmMemAllGather:
        pass

    groups(model)[0]._all_gather_comm = SymmMemAllGather()
    assert left_out(model) == ["plan.json does not have set_symm_mem_for_comm: simulate it with --transport symmetric"]


def test_a_mesh_of_all_axes():
    """dp_mesh_dims: parameters are DTensors on the whole mesh, and only the other axes divide them before FSDP does."""
    api = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_api")
    if not hasattr(api, "DataParallelMeshDims"):
        pytest.skip("this version of PyTorch has no dp_mesh_dims")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("outer", "inner", "tensor"))
        made = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
        for layer, dim in zip(made, (0, 1)):
            layer.weight = torch.nn.Parameter(distribute_tensor(layer.weight.data, mesh, [Replicate(), Replicate(), Shard(dim)], src_data_rank=None))
            fully_shard(layer, mesh=mesh, dp_mesh_dims=api.DataParallelMeshDims(shard="inner", replicate="outer"))
        fully_shard(made, mesh=mesh, dp_mesh_dims=api.DataParallelMeshDims(shard="inner", replicate="outer"))
        plan = plan_of(made)
        assert plan["mesh"] == {"replicate": 2, "shard": 2, "tensor": 2}
        assert plan["tensor_parallel"] == {"0": "column", "1": "row"}
    finally:
        dist.destroy_process_group()
