"""Records what accelerate makes of its config files, for tests/core/plan/accelerate_plan_test.cpp.

    python tests/tools/accelerate_plans.py tests/data/accelerate     writes expected.json (accelerate 1.15, transformers 5.23, torch 2.11)

Each file is read as `accelerate launch --config_file` or transformers' TrainingArguments read it: the launcher's defaults and environment, then
FullyShardedDataParallelPlugin. For FSDP2 the tiny Llama of tests/data/llama-tiny is prepared by accelerate on a fake process group, and the modules
that are FSDP modules are listed, with the groups that share one state and whether they are resharded after forward.
"""
import argparse
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed
import transformers
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin, prepare_multi_gpu_env
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch.testing._internal.distributed.fake_pg import FakeStore


LOADING = ("sync_module_states", "cpu_ram_efficient_loading")  # need a device, and say only how weights are loaded


def word(value):
    return None if value is None else str(value).split(".")[-1]


def plugin_of(path):
    for key in [key for key in os.environ if key.startswith(("FSDP_", "ACCELERATE_"))]:
        del os.environ[key]
    if path.suffix == ".json":
        arguments = SimpleNamespace(fsdp=True, fsdp_config=str(path), activation_checkpointing=False, gradient_checkpointing=False, bf16=False, fp16=False)
        values = transformers.TrainingArguments._process_fsdp_args(arguments)
        return FullyShardedDataParallelPlugin(**{key: value for key, value in values.items() if key not in LOADING}), None
    arguments = launch_command_parser().parse_args(["--config_file", str(path), "program.py"])
    arguments, defaults, _ = _validate_launch_command(arguments)
    if not arguments.use_fsdp:
        return None, arguments
    environment = prepare_multi_gpu_env(arguments)
    os.environ.update({key: value for key, value in environment.items() if key.startswith("FSDP_") and key.removeprefix("FSDP_").lower() not in LOADING})
    plugin = FullyShardedDataParallelPlugin()
    if arguments.mixed_precision not in (None, "no"):
        plugin.set_mixed_precision(arguments.mixed_precision)
    return plugin, arguments


def units_of(plugin, folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config)
    plugin.cpu_ram_efficient_loading = False
    accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision="no", is_main_process=False, device=torch.device("cpu"))
    fsdp2_prepare_model(accelerator, model)
    units = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.distributed.fsdp.FSDPModule):
            state = module._get_fsdp_state()
            group = state._fsdp_param_group
            unit = units.setdefault(id(state), {"modules": [], "reshard_after_forward": None if group is None else group._reshard_after_forward})
            unit["modules"].append(name)
    return list(units.values())


def describe(path):
    plugin, arguments = plugin_of(path)
    out = {"ranks": getattr(arguments, "num_processes", None), "fsdp": plugin is not None}
    if plugin is None:
        return out
    precision = plugin.mixed_precision_policy
    out |= {
        "version": plugin.fsdp_version,
        "strategy": word(plugin.sharding_strategy),
        "reshard_after_forward": word(plugin.reshard_after_forward),
        "backward_prefetch": word(plugin.backward_prefetch),
        "forward_prefetch": plugin.forward_prefetch,
        "limit_all_gathers": plugin.limit_all_gathers,
        "offload": "Policy" in type(plugin.cpu_offload).__name__ and type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy" or bool(getattr(plugin.cpu_offload, "offload_params", False)),
        "policy": getattr(plugin.auto_wrap_policy, "__name__", None),
        "classes": plugin.transformer_cls_names_to_wrap,
        "min_num_params": plugin.min_num_params,
        "activation_checkpointing": plugin.activation_checkpointing,
        "param_dtype": word(getattr(precision, "param_dtype", None)),
        "reduce_dtype": word(getattr(precision, "reduce_dtype", None)),
        "output_dtype": word(getattr(precision, "output_dtype", None)),
        "buffer_dtype": word(getattr(precision, "buffer_dtype", None)),
    }
    if plugin.fsdp_version == 2:
        plugin.cpu_offload = torch.distributed.fsdp.OffloadPolicy()  # the modules are the same, and the fake group has no device
        out["units"] = units_of(plugin, path.parent.parent / "llama-tiny")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    files = sorted([*folder.glob("*.yaml"), *folder.glob("fsdp_config*.json")])
    (folder / "expected.json").write_text(json.dumps({path.name: describe(path) for path in files}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
