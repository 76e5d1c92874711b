"""shardlens.export: what it records of models without a family and of a model of transformers, and that the program takes it."""
import importlib
import json
import re
import sys
from pathlib import Path

import pytest

import shardlens
from shardlens import export, program

ROOT = Path(__file__).resolve().parents[2]
PRODUCTS = ("gemm", "grouped_gemm", "attention", "convolution")

MIXTRAL = {"model_type": "mixtral", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "max_position_embeddings": 64, "num_local_experts": 4, "num_experts_per_tok": 2}


def source_of(model, inputs, seq=None, experts=None, loss=export._loss_of):
    return export.Source(model, lambda batch, length: export._arguments(inputs(batch)), loss, seq, {"source": "test"}, experts)


def example(name, seq=None, batches=(2, 4)):
    sys.path.insert(0, str(ROOT))
    try:
        return export.export(lambda: export.from_call(f"examples.python.models.{name}:make_model", seq), batches)
    finally:
        sys.path.remove(str(ROOT))


def flops(step, phase):
    return sum(o["flops"] for o in step["operators"] if o["phase"] == phase and o["kind"] in PRODUCTS)


@pytest.fixture(scope="session")
def unet():
    return example("unet")


def counted(name, batch, seq):
    """Forward and backward FLOPs of torch's counter on fake tensors, with the attention kernels of a GPU."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    from shardlens.export_trace import Tracer

    make = importlib.import_module(f"examples.python.models.{name}").make_model
    tracer = Tracer(FakeTensorMode())
    with tracer.modes():
        made = make()
        args, kwargs = export._arguments(made[1](batch, seq) if seq else made[1](batch))
        out = []
        loss = None
        for part in ("forward", "backward"):
            with FlopCounterMode(display=False) as counter:
                if part == "forward":
                    result = made[0](*args, **kwargs)
                    loss = made[2](result) if len(made) > 2 else result
                else:
                    loss.backward()
            out.append(counter.get_total_flops())
    assert torch.get_default_dtype() == torch.float32
    return out


@pytest.mark.parametrize("name, seq", [("unet", None), ("two_tower", 16), ("custom_vit", None)])
def test_flops_of_products_are_those_of_torchs_counter(name, seq, request):
    recorded = request.getfixturevalue("unet") if name == "unet" else example(name, seq)
    sys.path.insert(0, str(ROOT))
    try:
        wanted = counted(name, 2, seq)
    finally:
        sys.path.remove(str(ROOT))
    assert [flops(recorded["steps"][0], phase) for phase in ("forward", "backward")] == wanted
    assert min(wanted) > 0
    assert recorded["missing"] == []


def test_keeps_what_autograd_keeps():
    """By hand, in bf16: x [2, 4] and its product with W1 [4, 8] through ReLU, which is also the input of the second product."""
    import torch
    from torch import nn

    def make():
        return source_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), Summed()), lambda batch: torch.randn(batch, 4))

    class Summed(nn.Module):
        def forward(self, x):
            return x.sum()

    step = export.export(make)["steps"][0]
    tensors = {t["id"]: t for t in step["tensors"]}
    kept = {tensors[t]["storage"]: tensors[t]["bytes"] for o in step["operators"] for t in o["saved"] if not tensors[t].get("parameter")}
    assert sorted(kept.values()) == [2 * 4 * 2, 2 * 8 * 2]
    first = next(o for o in step["operators"] if o["name"] == "aten::addmm")
    assert first["module"] == "0" and first["product"] == [1, 2, 8, 4] and first["flops"] == 2 * 2 * 8 * 4
    gradients = [o for o in step["operators"] if o["forward"] == first["id"] and o["kind"] == "gemm"]
    assert [o["product"] for o in gradients] == [[1, 8, 4, 2]], "the input needs no gradient"
    assert step["order"].index(">0") < step["order"].index(f"o{first['id']}") < step["order"].index("<0")


def routed():
    """A layer whose experts are found by the values of the router: each runs on the rows that chose it."""
    import torch
    from torch import nn

    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(8, 4, bias=False)
            self.experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(4))

        def forward(self, x):
            weights, chosen = self.router(x).softmax(-1).topk(2)
            out = torch.zeros_like(x)
            for index, expert in enumerate(self.experts):
                rows, slots = torch.where(chosen == index)
                if rows.numel() > 0:
                    out = out.index_add(0, rows, expert(x[rows]) * weights[rows, slots, None])
            return out.sum()

    return Routed(), lambda batch: torch.randn(batch, 8)


def test_experts_run_on_their_share_of_declared_routing():
    made = export.export(lambda: source_of(*routed(), experts=(4, 2)), (8, 16))
    rows = {o["module"]: o["product"][1] for o in made["steps"][0]["operators"] if o["module"].startswith("experts.") and o["phase"] == "forward"}
    assert rows == {f"experts.{i}": 8 * 2 // 4 for i in range(4)}
    assert "experts are chosen equally often" in made["missing"]
    with pytest.raises(export.ExportError, match="--experts COUNT,PER_TOKEN"):
        export.export(lambda: source_of(*routed()), (8, 16))


def simulated(path, batch, folder):
    program.run(["simulate", "--model", path, "--hardware", "8xH100", "--precision", "bf16", "--batch", batch, "--out", folder])
    return json.loads((folder / "workload.json").read_text())


def test_two_batches_describe_every_other(unet, tmp_path):
    export.write(unet, tmp_path / "unet.json")
    export.write(example("unet", batches=(7, 14)), tmp_path / "seven.json")
    predicted, recorded = (simulated(tmp_path / name, 7, tmp_path / f"out-{name}") for name in ("unet.json", "seven.json"))
    assert predicted == recorded
    assert any(o["kind"] == "gemm" and o["flops"] > 0 for o in recorded["operators"])


def test_the_program_plans_simulates_and_searches_it(unet, tmp_path):
    export.write(unet, tmp_path / "unet.json")
    plan = program.ask(["plan", "--model", tmp_path / "unet.json", "--world-size", 8])
    assert {"down.0", "up.1"} <= {unit["fqn"] for unit in plan["units"]}
    text = program.run(["simulate", "--model", tmp_path / "unet.json", "--hardware", "8xH100"]).stdout
    assert " samples/s" in text and "tokens" not in text
    one = shardlens.simulate(tmp_path / "unet.json", hardware="8xH100", precision="bf16", batch=4)
    assert one["fits"] and one["compute_ns"] > 0
    program.run(["search", "--model", tmp_path / "unet.json", "--hardware", "8xH100", "--precision", "bf16", "--batch", 1, "--memory-limit", "20GiB",
                 "--out", tmp_path / "best.json"])
    best = shardlens.simulate(tmp_path / "unet.json", plan=tmp_path / "best.json", hardware="8xH100", batch=1)
    assert best["step_ns"] <= shardlens.simulate(tmp_path / "unet.json", hardware="8xH100", precision="bf16", batch=1)["step_ns"]


def test_a_config_of_transformers_has_the_products_of_the_native_family(tmp_path, capsys):
    """Mixtral: experts as grouped products, attention, router, all by module."""
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    assert export.main(["--hf", str(tmp_path), "--batch", "2", "--seq", "16", "--out", str(tmp_path / "model.json")]) == 0
    assert "experts are chosen equally often" in capsys.readouterr().err
    found, kept = [], []
    for model in ("config.json", "model.json"):
        out = tmp_path / f"out-{model}"
        stack = ["--stack", "transformers"] if model == "config.json" else []
        program.run(["simulate", "--model", tmp_path / model, "--hardware", "8xH100", "--precision", "bf16", "--batch", 2, "--seq", 16, "--out", out, *stack])
        operators = json.loads((out / "workload.json").read_text())["operators"]
        kept.append(sum(o.get("saved_bytes", 0) for o in operators))
        found.append(sorted((o["phase"], o["kind"], o["flops"], o.get("batch", 1), *sorted((o["m"], o["n"])), o["k"]) for o in operators if o["kind"] in ("gemm", "attention")))
    assert found[0] == found[1]
    assert abs(kept[0] / kept[1] - 1) < 0.05
    assert len(found[0]) > 20


def test_the_line_of_a_refusal_exports_the_model(tmp_path, capsys):
    """A family without a row, in a file by another name: the program's message has the command."""
    config = tmp_path / "phi.json"
    config.write_text(json.dumps({"model_type": "phi", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                                  "max_position_embeddings": 64, "architectures": ["PhiForCausalLM"]}))
    with pytest.raises(shardlens.ShardlensError) as refused:
        program.run(["plan", "--model", config])
    line = re.search(r"python -m shardlens\.export (.*?)'", str(refused.value))[1].split()
    assert line == ["--hf", str(config), "--out", "model.json"]
    line[-1] = str(tmp_path / "model.json")
    assert export.main([*line, "--batch", "1", "--seq", "8"]) == 0
    assert json.loads((tmp_path / "model.json").read_text())["name"] == "PhiForCausalLM"
    program.run(["plan", "--model", tmp_path / "model.json"])
    assert export.main(["--hf", str(config), "--out", str(config)]) == 2
    assert "is a file of the model that --hf reads" in capsys.readouterr().err


@pytest.mark.parametrize("arguments, message", [
    (["--call", "json:nothing"], "nothing"),
    (["--call", "json"], "expected pkg.mod:function"),
    (["--call", "json:loads"], "error: json:loads: TypeError: loads() missing"),
    (["--hf", "/nonexistent"], "has no config.json"),
    (["--hf", str(ROOT / "tests/data/models/mlp-tied")], "model type `mlp`"),
])
def test_errors_say_what_was_expected(arguments, message, tmp_path, capsys):
    assert export.main([*arguments, "--out", str(tmp_path / "model.json")]) == 3
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out, message", [("missing/model.json", "is not a folder"), ("", "is a folder; expected a file")])
def test_where_nothing_can_be_written_is_refused_before_the_export(out, message, tmp_path, capsys):
    assert export.main(["--call", "nothing:nothing", "--out", f"{tmp_path}/{out}"]) == 3
    assert message in capsys.readouterr().err


def test_a_file_of_the_model_is_not_replaced(tmp_path, capsys):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (tmp_path / "link.json").symlink_to(model / "config.json")
    (tmp_path / "name.json").hardlink_to(model / "config.json")
    for out in (model / "config.json", tmp_path / "link.json", tmp_path / "name.json"):
        assert export.main(["--hf", str(model), "--out", str(out)]) == 2
        assert f"--out {out}: is a file of the model that --hf reads" in capsys.readouterr().err
    assert (model / "config.json").read_text() == "{}"


def test_a_recording_has_the_config_of_a_model_of_transformers(tmp_path):
    """As save_pretrained() writes it, also inside of another module, so that the program reads the same model; models of other packages have none."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from shardlens.live_model import config_of

    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=128)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    config.save_pretrained(tmp_path / "saved")
    saved, written = json.loads((tmp_path / "saved/config.json").read_text()), json.loads(config_of(model))
    assert written == {**saved, "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(config_of(model))
    plan = program.ask(["plan", "--model", tmp_path, "--world-size", "2"])
    assert sum(unit["parameters"] for unit in plan["units"]) == sum(parameter.numel() for parameter in model.parameters())
    assert config_of(torch.nn.Linear(2, 2)) is None
