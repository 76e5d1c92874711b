"""What is said of parallel models that have no objects from which a plan can be read."""
import json

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import shardlens  # noqa: E402
from shardlens.live_model import model_of  # noqa: E402
from shardlens.live_plan import NoPlan, plan_of  # noqa: E402
from shardlens.live_units import gradient_sync  # noqa: E402


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


@pytest.mark.parametrize("wrap", (
    pytest.param(lambda ddp, net: torch.compile(ddp(net), backend="eager"), id="around"),
    pytest.param(lambda ddp, net: ddp(torch.compile(net, backend="eager")), id="inside"),
))
def test_a_compiled_ddp_has_the_plan_of_ddp(wrap):
    from torch.nn.parallel import DistributedDataParallel

    def ddp(net):
        return DistributedDataParallel(net, bucket_cap_mb=3, static_graph=True)

    compiled = wrap(ddp, model())
    assert plan_of(compiled) == plan_of(ddp(model()))
    assert model_of(compiled)["name"] == "Sequential"
    assert [row["name"] for row in model_of(compiled)["parameters"]] == ["0.weight", "0.bias", "2.weight"]
    assert gradient_sync(compiled)()
    with (compiled if hasattr(compiled, "no_sync") else compiled._orig_mod).no_sync():
        assert not gradient_sync(compiled)()


def test_ddp_around_a_part_is_named():
    from torch.nn.parallel import DistributedDataParallel

    parts = model()
    parts[2] = DistributedDataParallel(parts[2])
    with pytest.raises(NoPlan, match=r"DistributedDataParallel is around 2, parts of the model: a plan is of one; give record\(\) the one"):
        plan_of(parts)


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


def test_a_plan_that_cannot_be_read_is_a_note_and_the_rest_is_recorded(tmp_path, monkeypatch):
    """As with a version of PyTorch that keeps its objects elsewhere."""
    from shardlens import live_plan

    def other_version(*_):
        raise AttributeError("no '_fsdp_param_group'")

    monkeypatch.setattr(live_plan, "plan_of", other_version)
    plain = model()
    with shardlens.record(tmp_path / "run", model=plain, warmup=1, steps=1) as rec:
        for _ in range(2):
            plain(torch.ones(2, 4)).sum().backward()
            rec.step()
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "no plan.json: AttributeError: no '_fsdp_param_group'" in run["notes"]
    assert (tmp_path / "run" / "model.json").exists()
