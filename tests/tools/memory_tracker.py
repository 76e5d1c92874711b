"""Compares the simulator's memory with PyTorch's own tracker (torch.distributed._tools.fsdp2_mem_tracker.FSDPMemTracker).

    python tests/tools/memory_tracker.py record tests/data/memory_tracker.json [--only TEXT]     runs the tracker (torch 2.11, transformers 5.23)
    python tests/tools/memory_tracker.py record tests/data/memory_tracker_torchtitan.json --torchtitan DIR [--only TEXT]   DIR: see torchtitan_program.py
    python tests/tools/memory_tracker.py record tests/data/memory_tracker_torchtitan_03.json --torchtitan DIR [--only TEXT]   the same of torchtitan 0.3 with torch 2.15: torchtitan_03_program.py
    python tests/tools/memory_tracker.py compare tests/data/memory_tracker.json --bin build/release/bin/shardlens [--table] [--only TEXT] [--alive]

The tracker runs one optimizer step of transformers' (or torchtitan's) models under fully_shard, on a fake process group and fake tensors: nothing is computed and no
GPU is needed. The step is the second one, so that optimizer states exist. The tracker is used as it is, but for two things:

- Under FakeTensorMode DTensor makes tensors of the whole, unsharded parameters to find an operator's result's shape. They have no memory in a real
  step. The tracker counts them, which more than doubles a step's peak where AdamW runs with foreach; here it does not see them.
- scaled_dot_product_attention runs the kernel that a GPU runs (flash without a mask, memory-efficient with one), not that of a CPU.

The file has for each configuration the bytes of parameters, gradients and optimizer states of rank 0 between steps, the peak, the tracker's own
categories at the peak, and which operators made the memory that was alive then.
"""
import argparse
import collections
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/tools")]

import torchtitan_03_program
import torchtitan_program

DTYPES = {"fp32": None, "bf16": ("bfloat16", "bfloat16"), "mixed": ("bfloat16", "float32")}
SHAPE = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": False,
         "max_position_embeddings": 4096}
MODELS = {
    "llama": {"model_type": "llama", "vocab_size": 32000, **SHAPE},
    "qwen3": {"model_type": "qwen3", "vocab_size": 65536, **SHAPE},
    "mistral": {"model_type": "mistral", "vocab_size": 32000, "sliding_window": 512, **SHAPE},
    "gemma3": {"model_type": "gemma3_text", "vocab_size": 32000, "sliding_window": 512, **SHAPE, "tie_word_embeddings": True},
    "phi3": {"model_type": "phi3", "vocab_size": 32000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **{k: v for k, v in SHAPE.items() if k != "head_dim"}},
    "gpt2": {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 1024, "n_head": 16, "n_positions": 4096, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "mixtral": {"model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2, **SHAPE},
    "gemma2": {"model_type": "gemma2", "vocab_size": 32000, "sliding_window": 512, **SHAPE, "tie_word_embeddings": True},
    "gpt_oss": {"model_type": "gpt_oss", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 128, **SHAPE},
    "bytes": {"model_type": "llama", "vocab_size": 256, **SHAPE, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32},
    "gpt2-bytes": {"model_type": "gpt2", "vocab_size": 256, "n_embd": 2048, "n_head": 16, "n_positions": 4096, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "mpt": {"model_type": "mpt", "vocab_size": 32000, "d_model": 1024, "n_heads": 16, "max_seq_len": 4096},
}
LAYERS_KEY = {"gpt2": "n_layer", "gpt2-bytes": "n_layer", "mpt": "n_layers"}
LAYERS_OF = {"gpt2": "transformer.h", "gpt2-bytes": "transformer.h", "mpt": "transformer.blocks"}
DEFAULT = {"model": "llama", "layers": 2, "world": 8, "batch": 2, "seq": 1024, "dtype": "mixed", "checkpoint": "none", "reshard": None, "units": "layers", "optimizer": "foreach"}


def configurations():
    """Changes of DEFAULT, by name."""
    rows = []
    for model in MODELS:
        for dtype in DTYPES if model not in ("mixtral", "gpt_oss") else ("bf16", "mixed"):  # grouped products refuse fp32
            rows.append({"model": model, "dtype": dtype})
        rows.append({"model": model, "checkpoint": "all", "layers": 4, "optimizer": "fused"})
    for model in ("llama", "gpt2", "qwen3", "mixtral"):
        rows.append({"model": model, "checkpoint": "second", "layers": 4})
        rows.append({"model": model, "reshard": False, "layers": 4, "optimizer": "fused", "seq": 512})
        rows.append({"model": model, "reshard": True, "world": 2, "layers": 3})
    for model in ("llama", "gemma3"):
        rows.append({"model": model, "world": 64, "layers": 8})
        rows.append({"model": model, "world": 64, "layers": 8, "checkpoint": "all", "batch": 1, "seq": 4096, "optimizer": "fused"})
        rows.append({"model": model, "world": 2, "batch": 1, "seq": 128})
        rows.append({"model": model, "world": 2, "batch": 1, "seq": 128, "optimizer": "fused", "layers": 4})
    for units in ("pairs", "root", "ends"):
        rows.append({"units": units, "layers": 4})
        rows.append({"units": units, "layers": 4, "batch": 8, "seq": 512, "optimizer": "fused", "dtype": "bf16"})
    # The model itself is in bf16: no fp32 copies.
    for model in ("llama", "qwen3", "gpt2"):
        rows.append({"model": model, "dtype": "bf16-only"})
        rows.append({"model": model, "dtype": "bf16-only", "world": 2, "layers": 4, "optimizer": "fused", "batch": 1, "seq": 128})
    rows.append({"dtype": "bf16-only", "optimizer": "sgd", "checkpoint": "all", "layers": 4})
    rows.append({"optimizer": "sgd", "layers": 4})
    rows.append({"optimizer": "sgd", "world": 2, "dtype": "fp32"})
    for batch, seq in ((1, 2048), (4, 256), (16, 512)):
        rows.append({"model": "llama", "batch": batch, "seq": seq, "layers": 6, "optimizer": "fused"})
    out = {}
    for row in rows:
        out[" ".join(f"{value}" if key == "model" else f"{key}={value}" for key, value in {"model": "llama", **row}.items())] = {**DEFAULT, **row}
    return out


def is_torchtitan(row):
    return row["units"] == "torchtitan"


def titan_of(row):
    """The module that runs the row's version of torchtitan."""
    return torchtitan_03_program if row.get("version") == "0.3" else torchtitan_program


def config_of(row):
    if is_torchtitan(row):
        return torchtitan_program.config_of(row)
    return {**MODELS[row["model"]], LAYERS_KEY.get(row["model"], "num_hidden_layers"): row["layers"]}


# --- the tracker


def gpu_attention():
    """The kernels that a GPU takes for scaled_dot_product_attention, as `python -m shardlens.export` records them."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from shardlens.export_trace import Tracer

    torch.nn.functional.scaled_dot_product_attention = Tracer(FakeTensorMode())._fused_attention


def make_tracker(base=None):
    """`base`: FSDPMemTracker if None, or MemTracker."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import _UpdateType
    from torch.distributed.fsdp._fully_shard._fsdp_state import _register_group_forward_hooks
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    state = {"propagating": 0}

    def hidden(method):
        def inner(self, *args, **kwargs):
            state["propagating"] += 1
            try:
                return method(self, *args, **kwargs)
            finally:
                state["propagating"] -= 1

        return inner

    for name in dir(ShardingPropagator):
        if name.startswith("_propagate_tensor_meta"):
            setattr(ShardingPropagator, name, hidden(getattr(ShardingPropagator, name)))

    class Tracker(base or FSDPMemTracker):
        """The tracker, and which operator made each piece of memory that is alive at the peak."""

        def __init__(self, *args):
            super().__init__(*args)
            self.log, self.peak_at, self.most, self.now = [], 0, 0, "before the step"

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if state["propagating"]:
                return func(*args, **(kwargs or {}))
            module = max(self._mod_tracker.parents - {"Global"}, key=len, default="")
            module = ".".join("*" if part.isdigit() else part for part in module.split(".")[1:] if part != "_checkpoint_wrapped_module")
            self.now = f"{func._schema.name.removeprefix('aten::')} ({'optimizer' if self._in_opt else module})"
            out = super().__torch_dispatch__(func, types, args, kwargs)
            total = sum(peak for peak in self._peak_mem.values())
            if total > self.most:
                self.most, self.peak_at = total, len(self.log)
            return out

        def _instrument_fsdp_module(self):
            """Its hooks are those of units of one module. A unit of several would gather and reshard in each of their calls, so that a loss in parts ends the backward of all units."""
            super()._instrument_fsdp_module()
            states = {id(module._get_fsdp_state()): module._get_fsdp_state() for module in self._root_mod.modules() if hasattr(module, "_get_fsdp_state")}
            for state in states.values():
                modules = [module for module in self._root_mod.modules() if module in state._modules]
                if len(modules) < 2:
                    continue
                for module in modules:
                    for hooks, method in ((module._forward_pre_hooks, state._pre_forward), (module._forward_hooks, state._post_forward)):
                        for key in [key for key, hook in hooks.items() if getattr(hook, "__wrapped__", None) == method]:
                            del hooks[key]
                first, group = modules[0], state._fsdp_param_group
                own = self._fsdp_mod_to_saved_methods[first]
                for module in modules:
                    self._fsdp_mod_to_saved_methods[module] = own
                group.pre_backward = self._fsdp_param_group_pre_backward(first, own.pre_backward)
                group.post_backward = self._fsdp_param_group_post_backward(first, own.post_backward)
                given = (state._cast_output_dtype,) if hasattr(state, "_cast_output_dtype") else ()
                handle = _register_group_forward_hooks(
                    state._modules, self._fsdp_state_pre_forward(first, state._pre_forward), self._fsdp_state_post_forward(first, state._post_forward), state._modules_to_run_forward, *given)
                state._pre_forward_hook_handle = state._post_forward_hook_handle = handle

        def _fsdp_state_pre_forward(self, fsdp_mod, original):
            inner = super()._fsdp_state_pre_forward(fsdp_mod, original)

            def called(*args, **kwargs):
                try:
                    return inner(*args, **kwargs)
                except NotImplementedError:  # a module that is called again outside of the root's forward, for each part of a loss
                    if fsdp_mod is self._root_mod or fsdp_mod not in self.memory_tracking:
                        raise
                    del self.memory_tracking[fsdp_mod]
                    return inner(*args, **kwargs)

            return called

        def _update_snap(self, u_type, winfo, old_mem_consumed=None, old_reftype=None):
            super()._update_snap(u_type, winfo, old_mem_consumed, old_reftype)
            if u_type == _UpdateType.ADD:
                self.log.append((self.now, winfo.mem_consumed))
                winfo.made_by = self.now
            elif u_type == _UpdateType.DEL:
                self.log.append((winfo.made_by, -winfo.mem_consumed))
            elif u_type == _UpdateType.SIZE:
                self.log.append((winfo.made_by, winfo.mem_consumed - old_mem_consumed))

        def alive(self):
            sums = collections.Counter()
            for name, delta in self.log[:self.peak_at]:
                sums[name] += delta
            least = self.most / 100
            return dict(sorted(((k, v) for k, v in sums.items() if v >= least), key=lambda each: -each[1]))

    return Tracker


def shard(model, row, mesh):
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtypes = DTYPES.get(row["dtype"])
    given = {"mesh": mesh, "reshard_after_forward": row["reshard"]}
    if dtypes is not None:
        given["mp_policy"] = MixedPrecisionPolicy(param_dtype=getattr(torch, dtypes[0]), reduce_dtype=getattr(torch, dtypes[1]))
    layers = next(m for m in model.modules() if type(m).__name__ == "ModuleList")
    for i in range(len(layers)):
        if row["checkpoint"] == "all" or (row["checkpoint"] == "second" and i % 2 == 1):
            layers[i] = checkpoint_wrapper(layers[i])
    if row["units"] == "pairs":
        for i in range(0, len(layers), 2):
            fully_shard(list(layers[i:i + 2]), **given)
    elif row["units"] != "root":
        for layer in layers:
            fully_shard(layer, **given)
    if row["units"] == "ends":
        fully_shard(model.model.embed_tokens, **given)
        fully_shard([model.model.norm, model.lm_head], **given)
    fully_shard(model, **given)


def make_optimizer(kind, parameters):
    import torch

    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True)
    return torch.optim.AdamW(parameters, lr=1e-3, fused=kind == "fused", foreach=kind == "foreach")


def make(row):
    """The model, and a function that runs its forward and backward."""
    import torch
    import transformers

    values = config_of(row)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    config.use_cache = False
    stored = torch.bfloat16 if row["dtype"] == "bf16-only" else torch.float32
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=stored)
    return model, lambda ids, labels: model(input_ids=ids, labels=labels).loss.backward()


def train_step(forward_and_backward, optimizer, ids):
    """Leaves the gradients, as they are counted too."""
    forward_and_backward(ids, ids)
    optimizer.step()


def track(row, tracker_type):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    started = time.monotonic()
    torch.distributed.init_process_group("fake", rank=0, world_size=row["world"], store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (row["world"],))
        with FakeTensorMode(allow_non_fake_inputs=True):
            model, forward_and_backward = (titan_of(row).make if is_torchtitan(row) else make)(row)
            model.train()
            if is_torchtitan(row):
                titan_of(row).shard(model, row, mesh, DTYPES[row["dtype"]])
            else:
                shard(model, row, mesh)
            optimizer = make_optimizer(row["optimizer"], model.parameters())
            ids = torch.zeros(row["batch"], row["seq"], dtype=torch.long)
            train_step(forward_and_backward, optimizer, ids)
            optimizer.zero_grad()
            before = time.monotonic()
            tracker = tracker_type(model, optimizer)
            tracker.track_inputs((ids,))
            with tracker:
                train_step(forward_and_backward, optimizer, ids)
                end = tracker.get_tracker_snapshot("current")
            peak = tracker.get_tracker_snapshot("peak")
            size = {}
            for name, tensors in (("parameters", model.parameters()), ("gradients", (p.grad for p in model.parameters())),
                                  ("optimizer", (v for s in optimizer.state.values() for v in s.values() if isinstance(v, DTensor)))):
                size[name] = sum(t.to_local().numel() * t.element_size() for t in tensors if t is not None)
    finally:
        torch.distributed.destroy_process_group()
    sums = collections.Counter()
    for snapshot in peak.values():
        for key, value in snapshot.items():
            if value:
                sums[getattr(key, "value", key)] += value
    total = sums.pop("Total")
    left = sum(snapshot["Total"] for snapshot in end.values())
    return {**size, "peak": total, "after_step": left, "at_peak": dict(sums), "alive": tracker.alive(), "seconds": round(time.monotonic() - before, 2),
            "whole_seconds": round(time.monotonic() - started, 2)}


def prepare():
    """Makes transformers' models run on fake tensors. Returns its version."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    from transformers import masking_utils

    from shardlens import export

    export._decide_as_if_not_traced()
    masking_utils.find_packed_sequence_indices = lambda *args, **kwargs: None  # reads positions, which fake tensors do not have
    return f"transformers {transformers.__version__}"


def record(options):
    import torch

    torch.set_num_threads(1)
    titan = None
    if options.torchtitan is not None:
        titan = torchtitan_03_program if list(Path(options.torchtitan).glob("torchtitan-0.3*")) else torchtitan_program
    package = titan.prepare(options.torchtitan) if titan else prepare()
    gpu_attention()
    tracker_type = make_tracker()
    path = Path(options.file)
    rows = json.loads(path.read_text())["rows"] if path.exists() and options.only else {}
    for name, row in (titan.configurations() if titan else configurations()).items():
        if options.only and options.only not in name:
            continue
        rows[name] = {**row, "config": config_of(row), "plan": plan_of(row), "tracked": track(row, tracker_type)}
        print(f"{name}: {rows[name]['tracked']['peak'] / (1 << 20):.1f} MiB, {rows[name]['tracked']['whole_seconds']} s", file=sys.stderr, flush=True)
    origin = f"torch {torch.__version__.split('+')[0]} (FSDPMemTracker), {package}, by tests/tools/memory_tracker.py record"
    text = f'{{"origin": {json.dumps(origin)},\n "rows": {{\n' + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items()) + "\n}}\n"
    path.write_text(text)


# --- the simulator


def plan_of(row):
    dtypes = {"fp32": ("fp32", "fp32"), "bf16": ("bf16", "bf16"), "mixed": ("bf16", "fp32")}.get(row["dtype"])
    precision = {"mixed_precision": dict(zip(("param_dtype", "reduce_dtype"), dtypes))} if dtypes else {"dtype": "bf16"}
    if is_torchtitan(row):
        return {**torchtitan_program.plan_of(row), **precision}
    layers = LAYERS_OF.get(row["model"], "model.layers")
    units = {
        "layers": [layers + ".*", ""],
        "pairs": [[f"{layers}.{i}", f"{layers}.{i + 1}"] for i in range(0, row["layers"], 2)] + [""],
        "root": [""],
        "ends": ["model.embed_tokens", layers + ".*", ["model.norm", "lm_head"], ""],
    }[row["units"]]
    plan = {"version": 1, "layout": "per_parameter", "units": [{"modules": each} for each in units], "reshard_after_forward": row["reshard"], **precision}
    checkpointed = [i for i in range(row["layers"]) if row["checkpoint"] == "all" or (row["checkpoint"] == "second" and i % 2 == 1)]
    plan["activation_checkpointing"] = [f"{layers}.{i}" for i in checkpointed]
    return plan


def simulate(program, row, folder, alive):
    spec = json.loads((ROOT / "sim/hardware/specs/8xH200.json").read_text())
    spec["nodes"] = max(1, row["world"] // 8)
    for name, value in (("config.json", config_of(row)), ("plan.json", row.get("plan") or plan_of(row)), ("spec.json", spec)):
        (folder / name).write_text(json.dumps(value))
    arguments = ["simulate", "--model", str(folder), "--plan", str(folder / "plan.json"), "--hardware", str(folder / "spec.json"), "--world-size", str(row["world"]),
                 "--batch", str(row["batch"]), "--seq", str(row["seq"]), "--stack", "transformers" if not is_torchtitan(row) else "torchtitan-0.3" if row.get("version") == "0.3" else "torchtitan"]
    arguments += ["--no-cuda-graphs", "--loss-chunks", str(row["parts"])] if row.get("version") == "0.3" else []
    arguments += ["--expert-skew", str(row["skew"])] if row.get("skew") else []
    arguments += ["--optimizer", "sgd", "--momentum", "0.9"] if row["optimizer"] == "sgd" else ["--optimizer-impl", row["optimizer"]]
    started = time.monotonic()
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)}: exit code {done.returncode}: {done.stderr}")
    seconds = time.monotonic() - started
    shown = subprocess.run([program, *arguments], capture_output=True, text=True).stdout if alive else ""
    return json.loads(done.stdout), seconds, shown


# Categories at the peak that both have: of the simulator (with the allocator's rounding), of the tracker.
GROUPS = {
    "parameters and optimizer states": (("parameters", "optimizer"), ("Sharded Param", "OptState")),
    "unsharded parameters": (("unsharded",), ("Unsharded Param",)),
    "everything else": (("gradients", "activations", "communication"),
                        ("Sharded Grad", "Unsharded Grad", "Activation", "Temp", "All Gather", "Reduce Scatter", "Inputs", "Buffer")),
}


def distribution(values):
    sizes = sorted(map(abs, values))
    return (f"{len(sizes)} configurations: median {100 * sizes[len(sizes) // 2]:.2f} %, 95th percentile {100 * sizes[math.ceil(0.95 * len(sizes)) - 1]:.2f} %, "
            f"largest {100 * max(values, key=abs):+.2f} %")


def compare(options):
    rows = json.loads(Path(options.file).read_text())["rows"]
    errors, times = [], [0.0, 0.0]
    parts, by_model = collections.defaultdict(list), collections.defaultdict(list)
    for name, row in rows.items():
        if options.only not in name:
            continue
        tracked = row["tracked"]
        with tempfile.TemporaryDirectory() as scratch:
            found, seconds, shown = simulate(options.bin, row, Path(scratch), options.alive)
        error = found["peak_requested_bytes"] / tracked["peak"] - 1
        errors.append((error, name))
        times[0] += tracked["seconds"]
        times[1] += seconds
        mib = lambda value: f"{value / (1 << 20):.1f}"  # noqa: E731
        print(f"{100 * error:+6.1f} %  {mib(found['peak_allocated_bytes']):>8} {mib(tracked['peak']):>8}  {name}", flush=True)
        if options.alive:
            print("     ", {k: mib(v) for k, v in found["memory"].items()}, "\n     ", {k: mib(v) for k, v in tracked["at_peak"].items() if v > 1 << 19})
            print(shown)
            for key, value in tracked["alive"].items():
                print(f"{mib(value):>14} {key}")
        for group, (ours, theirs) in GROUPS.items():
            parts[group].append((sum(found["memory"][key] for key in ours) - sum(tracked["at_peak"].get(key, 0) for key in theirs)) / tracked["peak"])
        by_model[row["model"]].append(error)
    print(f"\n{distribution([error for error, _ in errors])}; tracker {times[0]:.0f} s, simulator {times[1]:.1f} s")
    for group, values in parts.items():
        print(f"{group}, of the peak: {distribution(values)}")
    if options.table:
        print("\n| model | configurations | median | largest |\n|---|---|---|---|")
        for model, values in by_model.items():
            sizes = sorted(map(abs, values))
            print(f"| `{model}` | {len(sizes)} | {100 * sizes[len(sizes) // 2]:.1f} % | {100 * max(values, key=abs):+.1f} % |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file")
    parser.add_argument("--bin", default="build/release/bin/shardlens")
    parser.add_argument("--torchtitan", metavar="DIR", help="record torchtitan's models, with the packages in DIR")
    parser.add_argument("--only", default="")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--alive", action="store_true")
    options = parser.parse_args()
    record(options) if options.what == "record" else compare(options)
