"""shardlens.watch: what it makes of marks, its outputs, and its failures. Watched steps of real programs are in test_clients.py."""
import re
from pathlib import Path

import pytest

import shardlens
from shardlens import live_watch
from shardlens.live_collectives import _FUNCTIONS, Call, CollectiveLog, HostMarks, figures, length
from shardlens.live_watch import Watch, _opentelemetry, _tensorboard, line, straggler


class Numbers:
    """Marks that are numbers, as a device's events are once they can be read."""

    def between(self, first, second):
        return second - first


def call(kind, group, begin, end, waited):
    made = Call(kind, group, begin)
    made.end, made.waited = end, waited
    return made


def test_exposed_is_what_the_step_waited_for():
    """Worked by hand. A: 0 to 10, waited for from 6: 4 exposed. B: 5 to 20 on another group, from 18: 2. C: 30 to 40, waited for after its end: none."""
    calls = [call("all_gather", "a", 100, 110, 106), call("all_gather", "b", 105, 120, 118), call("reduce_scatter", "a", 130, 140, 150)]
    found = figures(calls, Numbers(), 100)
    assert found == {
        "count": 3, "busy_ns": 30, "exposed_ns": 6, "groups": {
            "a": {"count": 2, "busy_ns": 20, "exposed_ns": 4}, "b": {"count": 1, "busy_ns": 15, "exposed_ns": 2}}}


def test_what_was_waited_for_together_counts_once():
    calls = [call("all_gather", "a", 0, 10, 2), call("all_gather", "a", 4, 12, 2)]
    assert figures(calls, Numbers(), 0)["exposed_ns"] == 10 and figures(calls, Numbers(), 0)["busy_ns"] == 12
    assert length([(0, 4), (2, 3), (4, 5), (9, 9)]) == 5


def test_a_missing_mark_makes_no_figure():
    assert figures([call("all_gather", "a", 0, None, None)], Numbers(), 0)["busy_ns"] is None
    found = figures([call("all_gather", "a", 0, 5, None)], Numbers(), 0)
    assert found["busy_ns"] == 5 and found["exposed_ns"] is None


def test_others_wait_for_the_rank_that_waits_least():
    assert straggler([(100, 40), (100, 5), (100, 44)]) == {"rank": 1, "ahead_ns": 35}
    assert straggler([(100, 40), (100, None)]) is None and straggler([(100, 40)]) is None


SEEN = {
    "step": 200, "step_ns": 12_500_000, "collectives": 9, "busy_ns": 4_000_000, "exposed_ns": 1_000_000, "hidden": 0.75,
    "groups": {"mesh_fsdp": {"count": 9, "busy_ns": 4_000_000, "exposed_ns": 1_000_000}}, "gathers": {"": 1, "layers.0": 2, "layers.1": 2},
    "memory_bytes": 3 * 2**29, "straggler": {"rank": 3, "ahead_ns": 700_000}, "unseen": None}


def test_the_line():
    assert line(SEEN) == (
        "shardlens: step 200: 12.500 ms; exposed communication 1.000 ms of 4.000 ms; group mesh_fsdp: 9 collectives, exposed 1.000 ms; "
        "gathers a unit: 1 × (root), 2 × layers.0 layers.1; peak memory 1.50 GiB; others waited for rank 3 (it waited 0.700 ms less)")


def test_scalars_reach_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        _tensorboard(writer)(SEEN)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    found = {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    assert found["shardlens/step_ms"] == [(200, 12.5)] and found["shardlens/exposed_ms/mesh_fsdp"] == [(200, 1.0)]
    assert found["shardlens/hidden"] == [(200, 0.75)] and found["shardlens/gathers_of_a_unit_at_most"] == [(200, 2.0)]


def test_scalars_reach_opentelemetry():
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    write = _opentelemetry(MeterProvider([reader]).get_meter("training"))
    write(SEEN)
    write({**SEEN, "step_ns": 13_000_000})
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    found = {(metric.name, point.attributes.get("group")): point.value for metric in metrics for point in metric.data.data_points}
    assert found["shardlens.step_ms", None] == 13.0
    assert found["shardlens.exposed_ms", None] == 1.0 and found["shardlens.exposed_ms", "mesh_fsdp"] == 1.0


def test_assert_overlap():
    watch = Watch(None, every=100)
    with pytest.raises(AssertionError, match="no step was watched: .* watches step 100 first, and 0 steps ended"):
        watch.assert_overlap(0.5)
    watch.last = SEEN
    watch.assert_overlap(0.75)
    with pytest.raises(AssertionError, match=r"75.0 % of the communication was hidden, expected at least 76.0 %: shardlens: step 200"):
        watch.assert_overlap(0.76)
    watch.last = {**SEEN, "hidden": None}
    with pytest.raises(AssertionError, match="no measured communication"):
        watch.assert_overlap(0.1)


def test_assert_overlap_does_not_wait_for_other_ranks(monkeypatch):
    """The step has ended on this rank, and the others have not told."""
    monkeypatch.setattr(live_watch, "_all_told", lambda key: False)
    monkeypatch.setattr(live_watch, "_tell", lambda *told: None)
    watch = Watch(None, every=100)
    watch._pending.append({
        "step": 100, "step_ns": 50, "calls": [call("all_gather", "a", 0, 10, 8)], "origin": 0, "end": 50, "marks": HostMarks(), "gathers": {},
        "memory_bytes": 0, "hidden_calls": None})
    watch.assert_overlap(0.8)
    with pytest.raises(AssertionError, match="80.0 % of the communication was hidden, expected at least 90.0 %"):
        watch.assert_overlap(0.9)
    assert watch.last is None


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="every=0"):
        Watch(None, every=0)


def test_one_process_watches_every_second_step_and_a_fault_ends_only_the_watch(monkeypatch):
    import torch
    import torch.distributed as dist

    model, lines = torch.nn.Linear(3, 2), []
    watch = shardlens.watch(model, every=2, log=lines.append)
    original = dist.all_reduce
    for step in range(6):
        assert (dist.all_reduce is original) == (step == 0 or step % 2 != 0)
        model(torch.ones(4, 3)).sum().backward()
        watch.step()
    assert [text.split(":")[1] for text in lines] == [" step 2", " step 4"]
    monkeypatch.setattr(live_watch, "Counter", None)
    with pytest.warns(RuntimeWarning, match="shardlens.watch: the watch stopped, training goes on: TypeError: 'NoneType' object is not callable"):
        watch.step()
    assert dist.all_reduce is original and len(lines) == 2
    watch.step()
    watch.close()


def test_calls_are_seen_only_inside_of_fsdp():
    """Two logs, one within the other, and PyTorch's own functions after both."""
    import torch
    import torch.distributed as dist

    original = dist.all_reduce
    first, second = CollectiveLog(HostMarks()), CollectiveLog(HostMarks())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        first.install()
        second.install()
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        first.inside = second.inside = 1
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        second.remove()
        dist.all_reduce(tensor)
        work.wait()
        first.remove()
        assert dist.all_reduce is original
    finally:
        dist.destroy_process_group()
    assert [len(log.calls) for log in (first, second)] == [3, 2] and first.failure is second.failure is None
    assert {each.group for each in second.calls} == {"default_pg"} and second.calls[0].waited == second.calls[0].begin
    assert second.calls[1].waited is None, "nothing has waited for the asynchronous one"


def test_all_collectives_of_fsdp_are_seen():
    """As the installed PyTorch calls them: other versions have other names, which are aliases."""
    fsdp = Path(pytest.importorskip("torch.distributed.fsdp").__file__).parent
    sources = [fsdp / "_fully_shard" / "_fsdp_collectives.py", fsdp / "_runtime_utils.py", fsdp / "_flat_param.py"]
    called = {name for source in sources for name in re.findall(r"\bdist\.(_?(?:all_gather|reduce_scatter|all_reduce)\w*)\(", source.read_text())}
    assert len(called) > 2 and called <= set(_FUNCTIONS)


def test_the_names_of_torch_2_15_are_seen(monkeypatch):
    """Older versions do not have them; here they are the functions of which they are aliases."""
    import torch
    import torch.distributed as dist

    aliases = {"all_gather_single": dist.all_gather_into_tensor, "reduce_scatter_single": dist.reduce_scatter_tensor}
    for name, function in aliases.items():
        monkeypatch.setattr(dist, name, getattr(dist, name, function), raising=False)
    log = CollectiveLog(HostMarks())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        log.install()
        log.inside = 1
        dist.all_gather_single(torch.ones(2), torch.ones(2), group=dist.group.WORLD)
        dist.reduce_scatter_single(torch.ones(2), torch.ones(2), dist.ReduceOp.SUM, dist.group.WORLD)
    finally:
        log.remove()
        dist.destroy_process_group()
    assert [(call.kind, call.group) for call in log.calls] == [("all_gather", "default_pg"), ("reduce_scatter", "default_pg")] and log.failure is None
