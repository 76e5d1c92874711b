"""The commands whose outputs compare_outputs.py compares: on every trace, plan and model of tests/data and traces/.

A case is a tuple of commands, each a tuple of arguments, run one after the other with the root of the sources as working directory. In arguments
"{inputs}" is the folder of what write_inputs() makes, "{out}" an empty folder that the case may write to. What a later command reads there is an
output of an earlier one.
"""
import json
import shlex
from pathlib import Path

import parity_rows

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("traces", "tests/data")
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "replicate")
MACHINES = ("8xA100-40", "8xA100-80", "8xH100", "8xH100-96", "8xH200", "4xH200", "8xB200", "8xB300", "4xGB200", "4xGB300", "8xL40S", "8xRTXPRO6000", "4xPCIe")
TABLES = ("unit", "collective", "step", "rank", "stream", "span", "order", "group")

# Plans that fit any model, or those whose blocks are called as model.layers.0; where one does not fit, the message is what is compared.
PLANS = {
    "keep-2": {"reshard_after_forward": 2},
    "keep-2-and-4": {"units": [{"modules": "*.*.0", "reshard_after_forward": 2}, {"modules": "*.*.1", "reshard_after_forward": 4}, {"modules": ""}]},
    "replicas-2-keep-2": {"mesh": {"replicate": 2, "shard": 4}, "reshard_after_forward": 2, "forward_prefetch": 1},
    "per-parameter-bf16": {"layout": "per_parameter", "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"},
                           "separate_reduce_scatter_group": True},
    "fsdp1-post": {"dialect": "fsdp1", "backward_prefetch": "post", "forward_prefetch": 1},
    "checkpointed-offload": {"activation_checkpointing": ["*.*.*"], "cpu_offload": True},
    "optimizer-in-backward": {"mesh": {"replicate": 2, "shard": 4}, "optimizer_in_backward": True, "reshard_after_forward": False},
}
FAMILIES = json.loads((ROOT / "tests/data/families/configs.json").read_text())  # public configurations: name to config.json
PRUNED = ("fonts", "goldens", "corrupt", "parity")  # not walked for models, plans and runs


def relative(path):
    return path.relative_to(ROOT).as_posix()


def files(*names):
    """Files below FOLDERS with one of these names, sorted."""
    found = [path for folder in FOLDERS for name in names for path in (ROOT / folder).rglob(name)]
    return sorted(relative(path) for path in found if path.is_file() and not set(PRUNED) & set(path.parts))


def is_trace(path):
    return path.name.endswith((".pt.trace.json", ".pt.trace.json.gz", ".pt.trace.json.zst"))


def runs():
    """Folders with traces."""
    return sorted({relative(path.parent) for folder in FOLDERS for path in (ROOT / folder).rglob("*") if is_trace(path)})


def lone_traces():
    """Traces that are in no run's folder; most of them are bad."""
    kept = [path for folder in ("tests/data/corrupt", "tests/data/one_queue", "tests/data/fuzz/reader", "tests/data/fuzz/spool", "traces/memory-h200")
            for path in (ROOT / folder).iterdir() if path.is_file()]
    return sorted(relative(path) for path in kept)


def models():
    """A folder with config.json, a file of its kind under another name, or a model.json."""
    folders = [name.rpartition("/")[0] for name in files("config.json")]
    fuzzed = [relative(path) for path in sorted((ROOT / "tests/data/fuzz/model").iterdir()) if path.stem not in FAMILIES]
    return folders + files("model.json") + fuzzed + [f"{{inputs}}/families/{name}/config.json" for name in FAMILIES]


def plans():
    return files("plan.json") + sorted(relative(path) for path in (ROOT / "tests/data/fuzz/plan").iterdir())


def write_inputs(folder):
    """Writes the inputs of the cases that no file of the sources is."""
    def write(name, document):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1))

    for name, plan in PLANS.items():
        write(f"{name}.json", {"version": 1, **plan})
    for name, config in FAMILIES.items():
        write(f"families/{name}/config.json", config)
    for name, model, world, layout in rows():
        write(f"rows/{name}.{model}.{layout}.json", parity_rows.plan_of(parity_rows.row(name), model, world, layout))


def rows():
    """The rows of the parity table with every model and layout, each on its largest world."""
    for name in parity_rows.ROWS:
        row = parity_rows.row(name)
        for model in row["models"]:
            for layout in row["layouts"]:
                yield name, model, max(row["worlds"]), layout


def own_plans():
    return [f"{{inputs}}/{name}.json" for name in PLANS]


def of_plans():
    for name, model, world, layout in rows():
        run = parity_rows.row(name)["run"]
        flags = ("--model", f"tests/data/{model}", "--plan", f"{{inputs}}/rows/{name}.{model}.{layout}.json", "--world-size", str(world),
                 "--accumulate", str(run.get("accumulate", 1)), *(["--no-sync"] if run.get("no_sync") else []), "--json")
        yield "plan", *flags, "--parameters", "--actions"
        yield "simulate", *flags, "--hardware", "8xH100"
    for plan in plans():
        own = plan.rpartition("/")[0]
        beside = [name for name in (own, f"{own}/model.json") if name in MODELS]
        for model in ("tests/data/llama-tiny", "tests/data/gpt2-tiny", *beside):
            for flags in ((), ("--world-size", "4"), ("--world-size", "8", "--parameters", "--actions", "--accumulate", "2")):
                yield "plan", "--model", model, "--plan", plan, *flags, "--json"
            yield "simulate", "--model", model, "--plan", plan, "--hardware", "8xH100", "--json"
            yield "simulate", "--model", model, "--plan", plan, "--hardware", "8xH100", "--world-size", "4", "--json"


def of_models():
    for model in MODELS:
        yield "plan", "--model", model, "--json"
        for strategy in STRATEGIES:
            yield "plan", "--model", model, "--strategy", strategy, "--world-size", "8", "--parameters", "--json"
            yield "simulate", "--model", model, "--strategy", strategy, "--hardware", "8xH100", "--json"
        for plan in own_plans():
            yield "plan", "--model", model, "--plan", plan, "--world-size", "8", "--parameters", "--json"
            yield "simulate", "--model", model, "--plan", plan, "--hardware", "8xH100", "--json"
        yield "plan", "--model", model, "--strategy", "hybrid_shard", "--world-size", "4", "--accumulate", "2", "--no-sync", "--actions", "--json"
        yield "plan", "--model", model, "--mesh", "2x3", "--actions", "--parameters", "--json"
        yield "plan", "--model", model, "--mesh", "shard=2,tensor=2", "--pytorch"
        yield "simulate", "--model", model, "--hardware", "4xPCIe", "--precision", "bf16", "--accumulate", "2", "--json"
        yield "simulate", "--model", model, "--hardware", "8xH100", "--fits", "--json"
        yield "simulate", "--model", model, "--hardware", "8xH200", "--world-size", "4", "--mesh", "2x2", "--ranks", "all", "--slow-rank", "1:1.5", "--json"
        yield "search", "--model", model, "--hardware", "8xH100", "--memory-limit", "80GiB", "--json"
        yield "gui", "--figures", "--model", model, "--hardware", "8xH100"
    for model in ("tests/data/llama-tiny", "tests/data/gpt2-tiny", "tests/data/mixtral-tiny"):
        for machine in (*MACHINES, *(relative(path) for path in sorted((ROOT / "tests/data/fuzz/hardware").iterdir()))):
            yield "simulate", "--model", model, "--hardware", machine, "--strategy", "hybrid_shard", "--seq", "256", "--json"
        for transport in ("symmetric", "copy_engine"):
            yield "simulate", "--model", model, "--hardware", "8xH100", "--transport", transport, "--json"
        for calibration in sorted((ROOT / "tests/data/fuzz/calibration").iterdir()):
            yield "simulate", "--model", model, "--calibration", relative(calibration), "--json"
        yield "search", "--model", model, "--hardware", "8xH100", "--memory-limit", "2GiB", "--per-block", "--precisions", "fp32,bf16", "--json"
        yield "search", "--model", model, "--hardware", "4xPCIe", "--memory-limit", "1MiB", "--json"
        yield "search", "--model", model, "--hardware", "8xH100", "--memory-limit", "2GiB", "--tensor", "1,2", "--context", "1", "--json"
        yield "search", "--model", model, "--hardware", "8xH100", "--memory-limit", "2GiB", "--mesh", "shard=4,context=2", "--json"
        for plan in own_plans():
            yield "search", "--model", model, "--plan", plan, "--hardware", "8xH100", "--memory-limit", "80GiB", "--out", "{out}/best.json", "--json"
            yield "gui", "--figures", "--model", model, "--hardware", "8xH100", "--plan", plan
    for project in files("*.shardlens"):
        yield "gui", "--figures", project


def of_runs():
    for run in RUNS:
        yield "analyze", run, "--json"
        yield "analyze", run, "--critical-path", "--by", "span", "--json"
        yield "analyze", run, "--explain", "(root)", "--each", "--json"
        yield "analyze", run, "--compat", "hta", "--json"
        yield "convert", run, "--compat", "tensorboard", "--out", "{out}/converted"
        for table in TABLES:
            yield "analyze", run, "--by", table, "--each", "--csv"
        yield "plan", "--from-trace", run, "--json"
        yield "plan", "--from-trace", run, "--parameters", "--json"
        yield "plan", "--from-trace", run, "--model", "tests/data/llama-tiny", "--parameters", "--json"
        yield "plan", "--from-trace", run, "--out", "{out}/plan", "--json"
        yield "advise", run, "--top", "50", "--json"
        yield "advise", run, "--memory-limit", "1GiB", "--out", "{out}", "--json"
        yield "report", run, "--simulate", "--advise", "--out", "{out}/report.html"
        yield "simulate", "--workload", run, "--json"
        for strategy in STRATEGIES:
            yield "simulate", "--workload", run, "--strategy", strategy, "--hardware", "8xH100", "--json"
        for plan in own_plans():
            yield "simulate", "--workload", run, "--plan", plan, "--hardware", "8xH100", "--world-size", "8", "--json"
        yield "search", "--workload", run, "--memory-limit", "1TiB", "--json"
        yield "search", "--workload", run, "--hardware", "8xH100", "--memory-limit", "80GiB", "--json"
        yield "gui", "--figures", run
        yield "gui", "--figures", run, "--simulate", "--find-best", "--panel", "advice"
        yield "gui", "--figures", run, "--plan", own_plans()[0], "--hardware", "8xH100"
        yield "check", "--baseline", run, "--candidate", run, "--json"
        yield "check", "--baseline", "tests/data/fuzz/baseline/one-run.json", "--candidate", run, "--json"
    for one, other in zip(RUNS, RUNS[1:]):
        yield "check", "--baseline", one, "--candidate", other, "--json"
        yield "check", "--baseline", one, one, one, one, one, "--candidate", other, other, other, other, other, "--json"
    for trace in lone_traces():
        yield "analyze", trace, "--json"
        yield "analyze", trace, "--by", "span", "--critical-path", "--json"
        yield "plan", "--from-trace", trace, "--json"
        yield "advise", trace, "--json"
    for trace in (name for name in lone_traces() if "/one_queue/" in name or "/memory-h200/" in name):
        yield "simulate", "--workload", trace, "--hardware", "8xH100", "--json"
        yield "report", trace, "--out", "{out}/report.html"
        yield "gui", "--figures", trace


def of_simulated_runs():
    """The cases of runs that the simulator writes, and of what the other commands find in them."""
    for model in ("tests/data/llama-tiny", "tests/data/gpt2-tiny", "tests/data/qwen3-moe-tiny"):
        for flags in ((), ("--strategy", "hybrid_shard", "--accumulate", "2"), ("--strategy", "replicate"), *(("--plan", plan) for plan in own_plans())):
            yield (("simulate", "--model", model, "--hardware", "8xH100", *flags, "--out", "{out}/run", "--json"), ("analyze", "{out}/run", "--json"),
                   ("plan", "--from-trace", "{out}/run", "--parameters", "--json"), ("advise", "{out}/run", "--json"),
                   ("simulate", "--workload", "{out}/run", "--json"), ("check", "--baseline", "{out}/run", "--candidate", "{out}/run", "--json"))


def of_schemas():
    for path in sorted((ROOT / "docs/schemas").glob("*.json")):
        yield "schema", path.stem


RUNS, MODELS = runs(), models()


def all_cases():
    """Every case once."""
    found = [(command,) for group in (of_plans, of_models, of_runs, of_schemas) for command in group()] + list(of_simulated_runs())
    return list(dict.fromkeys(found))


def name_of(case):
    def shown(argument):
        return argument if argument.startswith(("{inputs}/", "{out}")) else shlex.quote(argument)
    return " && ".join(" ".join(map(shown, command)) for command in case)
