"""What is said of parallel models that have no objects from which a plan can be read."""
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from shardlens.live_plan import NoPlan, plan_of  # noqa: E402


@pytest.fixture(autouse=True)
def one_rank(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2, bias=False))


def test_a_plain_model_is_not_sharded():
    with pytest.raises(NoPlan, match="the model is not sharded"):
        plan_of(model())


def test_composable_replicate_is_named():
    from torch.distributed._composable.replicate import replicate

    whole = model()
    replicate(whole)
    with pytest.raises(NoPlan, match=r"replicate\(\) was applied to the model: it averages gradients as DistributedDataParallel"):
        plan_of(whole)
    parts = model()
    replicate(parts[0])
    replicate(parts[2])
    with pytest.raises(NoPlan, match=r"replicate\(\) was applied to 0, 2:"):
        plan_of(parts)


def test_parameters_that_are_dtensors_are_counted():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    parts = model()
    mesh = init_device_mesh("cpu", (1,))
    parts[0].weight = torch.nn.Parameter(distribute_tensor(parts[0].weight.data, mesh, [Shard(0)]))
    parts[2].weight = torch.nn.Parameter(distribute_tensor(parts[2].weight.data, mesh, [Shard(0)]))
    with pytest.raises(NoPlan, match=r"2 parameters are DTensors, 2 of them S\(0\) over 1 ranks, which no fully_shard gathers"):
        plan_of(parts)
