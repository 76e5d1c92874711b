#!/usr/bin/env python3
"""Predicts published steps on one node, to which no constant was fitted: measured, predicted, and whether the 90 % interval has the measured figure.

    bench/published_one_node.py [--bin build/release/bin] [--runs tests/data/one_node_2026.csv tests/data/one_node_more.csv]

Rows that are not simulated (tensor parallelism with LoRA, other trainers, several nodes) are counted with the reason. What a source does not
print is torchtitan's default: 8192 tokens (4096 of its DeepSeek 16B), one sample, selective checkpoints. "FSDP4 EP2" on eight GPUs is a shard axis of 8 whose experts are
sharded over 4; the row with DeepEP is simulated with c10d's all-to-alls. Only the first row was used to fit a constant (`rows` 1 of "PyTorch
H100-96GB" in sim/hardware/stacks.json); it is listed and not counted.
"B200 power limited": 750 W, which others of the same company state for theirs (FBGEMM pull request 4821, torchao pull request 3566). float8 with scales for tensors gathers
8 bits, as torchtitan's documents start it (docs/float8.md) and torchao's README says. Automodel checkpoints whole blocks (its qwen3_moe_30b_te_deepep.yaml).

The last columns are the same with nothing of the row's own source in what the interval is wider for experts, contexts and power limits ("families" below); of contexts
there is one source, so that only the row itself is left out.
"""
import argparse
import csv
import json
import math
import pathlib
import re
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LLAMA_8B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False}
DEEPSEEK_16B = {"model_type": "deepseek_v3", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
                "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 102400,
                "n_group": 1, "topk_group": 1, "max_position_embeddings": 16384, "tie_word_embeddings": False}
QWEN3_30B = {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
             "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
             "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False}
MODELS = {"Llama3.1-8B": LLAMA_8B, "Llama3-8B": LLAMA_8B, "DeepSeek-V3-16B": DEEPSEEK_16B, "Qwen3-MoE-30B": QWEN3_30B}
TOKENS = {"DeepSeek-V3-16B": "4096"}
HARDWARE = {"H100": "8xH100", "H100-96GB-500W": "8xH100-96", "H100-96GB": "8xH100-96", "B200": "8xB200", "B200 power limited": "8xB200", "GB200": "4xGB200"}
MATMUL = {"bf16": [], "float8": ["--matmul-dtype", "fp8_tensorwise"], "float8 tensorwise": ["--matmul-dtype", "fp8_tensorwise"],
          "float8 rowwise": ["--matmul-dtype", "fp8_rowwise"], "mxfp8_cublas": ["--matmul-dtype", "mxfp8"], "mxfp8_cublas_rceil": ["--matmul-dtype", "mxfp8"]}
SELECTIVE = ["attention", "every_second_product"]


FAMILIES = ("experts", "context", "power_limit")


def program_of(row):
    """Before May 2025 attention on an H100 was FlashAttention-2 (torchtitan pull request 1196), and before PyTorch 2.9 a norm several kernels."""
    return "torchtitan-2024" if row["source_date"] < "2025-05" else "torchtitan"


def flags_of(row):
    """The flags of simulate, or why the row is left out."""
    if row["model"] not in MODELS:
        return f"the model {row['model']}"
    if "TP2" in row["parallelism"].split():
        return "tensor parallelism with LoRA"
    if row["engine"].startswith(("SimpleFSDP", "GraphTrainer")):
        return f"another trainer, {row['engine']}"
    out = ["--hardware", HARDWARE[row["gpu"]], "--stack", program_of(row), "--batch", row["local_batch"] or "1", "--seq", row["seq"] or TOKENS.get(row["model"], "8192"), *MATMUL[row["precision"]]]
    if "limited" in row["gpu"]:
        out += ["--power-limit", "750"]
    if row["compile"] == "yes":
        out += ["--compile", "block"]
    accumulated = re.search(r"\bGA (\d+)", row["other_metric"])
    if accumulated:
        out += ["--accumulate", accumulated[1]]
    if row["other_metric"].startswith("loss_chunks"):
        out += ["--loss-chunks", row["other_metric"].split()[1]]
    if row["other_metric"] == "symm_mem on":
        out += ["--transport", "symmetric"]
    return out


def mesh_of(row):
    """The axes of FSDP, context and expert parallelism: "FSDP4 CP2". With experts on a mesh of their own FSDP shards the rest over all GPUs."""
    sizes = {"FSDP": int(row["gpus"]), "CP": 1, "EP": 1}
    for part in row["parallelism"].split():
        name = part.rstrip("0123456789")
        if name in sizes and part != name:
            sizes[name] = int(part[len(name):])
    if sizes["EP"] > 1:
        return {"shard": int(row["gpus"]), "expert": sizes["EP"]}
    return {"shard": sizes["FSDP"], "context": sizes["CP"]} if sizes["CP"] > 1 else None


def plan_of(row):
    """apply_fsdp of torchtitan: in 2024 all but the blocks was one unit, later embedding and head have units of their own."""
    blocks = [f"model.layers.{i}" for i in range(MODELS[row["model"]]["num_hidden_layers"])]
    units = [*({"modules": block} for block in blocks), {"modules": ""}]
    if program_of(row) == "torchtitan-2024":
        units[-2]["reshard_after_forward"] = False
    else:
        units = [{"modules": "model.embed_tokens"}, *units[:-1], {"modules": ["model.norm", "lm_head"], "reshard_after_forward": False}, units[-1]]
    plan = {"version": 1, "dialect": "fsdp2", "layout": "per_parameter", "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"},
            "units": units, "activation_checkpointing": blocks}
    if row["precision"] in ("float8", "float8 tensorwise"):
        plan["mixed_precision"]["gather_dtype"] = "float8_e4m3fn"
    mesh = mesh_of(row)
    if mesh:
        plan["mesh"] = mesh
        if "expert" in mesh:  # units of their own, as in torchtitan's apply_fsdp
            plan["units"].insert(0, {"modules": "model.layers.*.mlp.experts", "groups": [{"parameters": ["**"], "mesh": "expert"}]})
    checkpoints = "full" if row["source"].startswith("NVIDIA-NeMo") else row["ac"]
    if checkpoints == "none":
        del plan["activation_checkpointing"]
    return plan if checkpoints in ("full", "none") else {**plan, "checkpointing_saves": SELECTIVE}


def families_of(row):
    return {name for name, has in (("experts", "moe_intermediate_size" in MODELS[row["model"]]), ("context", (mesh_of(row) or {}).get("context", 1) > 1),
                                   ("power_limit", "limited" in row["gpu"])) if has}


def farthest(family, results, left_out=None):
    """How much faster and slower than predicted a source's steps of the family were at most, as logarithms, in the mean over its rows: of all sources, or of others than
    `left_out`'s. Of contexts there is one source, of which its other rows are taken. Steps with Transformer Engine and DeepEP are another program."""
    of = [each for each in results if family in each["families"] and each["row"]["engine"].startswith("FSDP2") and "+" not in each["row"]["engine"] and each is not left_out]
    others = [each for each in of if left_out is None or each["team"] != left_out["team"]]
    rows = of if family == "context" else others
    by = {}
    for each in rows:
        by.setdefault(id(each) if family == "context" else each["team"], []).append(math.log(each["measured"] / each["predicted"]))
    means = [statistics.fmean(errors) for errors in by.values()]
    return max([0.0, *means]), max([0.0, *(-each for each in means)])


def without_its_source(result, results, shipped):
    """The interval with what its families are off without its own source."""
    ends = []
    for side, end in enumerate((result["high"], result["low"])):
        known = sum(shipped[family][side] ** 2 for family in result["families"])
        rest = sum(farthest(family, results, result)[side] ** 2 for family in result["families"])
        half = math.sqrt(max(0.0, math.log(end / result["predicted"]) ** 2 - known) + rest)
        ends.append(result["predicted"] * math.exp(-half if side else half))
    return ends[1], ends[0]


def simulated(binary, row, flags):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        positions = {"max_position_embeddings": max(int(row["seq"] or 0), MODELS[row["model"]]["max_position_embeddings"])}
        (folder / "config.json").write_text(json.dumps({**MODELS[row["model"]], **positions}))
        (folder / "plan.json").write_text(json.dumps(plan_of(row)))
        command = [binary / "shardlens", "simulate", "--model", folder / "config.json", "--plan", folder / "plan.json", "--json", *flags]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()


def summary(name, results):
    inside = [each["low"] <= each["measured"] <= each["high"] for each in results]
    without = [each["without"][0] <= each["measured"] <= each["without"][1] for each in results]

    def width(ends):
        return 100 * statistics.median((high / low) ** 0.5 - 1 for low, high in ends)
    errors = [abs(each["predicted"] / each["measured"] - 1) for each in results]
    print(f"{name}: {len(results)} rows, median error {100 * statistics.median(errors):.1f} %; within the interval {sum(inside)}, median half-width "
          f"{width([(each['low'], each['high']) for each in results]):.1f} %; with the source left out {sum(without)}, {width([each['without'] for each in results]):.1f} %")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--runs", type=pathlib.Path, nargs="+", default=[ROOT / "tests/data/one_node_2026.csv", ROOT / "tests/data/one_node_more.csv"])
    arguments = parser.parse_args()
    borrowed = json.loads((ROOT / "sim/hardware/stacks.json").read_text())["borrowed"]
    shipped = {family: [borrowed[family][side]["value"] if family in borrowed else 0 for side in ("faster", "slower")] for family in FAMILIES}
    results, left_out = [], {}
    for path in arguments.runs:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            flags = flags_of(row)
            result = flags if isinstance(flags, str) else simulated(arguments.bin, row, flags)
            if isinstance(result, str):
                left_out[result] = left_out.get(result, 0) + 1
                continue
            ranks = int(row["gpus"])
            low, high = (each / ranks for each in result["tokens_per_s_interval"])
            results.append({"row": row, "list": path.stem, "families": families_of(row), "team": "mx_formats" if "limited" in row["gpu"] else row["source"].split(" ")[0],
                            "measured": float(row["tokens_per_s_per_gpu"]), "predicted": result["tokens_per_s"] / ranks, "low": low, "high": high,
                            "reserved": result["peak_reserved_bytes"] / 2**30, "fitted": path == arguments.runs[0] and row is rows[0]})
    scored = [each for each in results if not each["fitted"]]
    for each in results:
        each["without"] = without_its_source(each, scored, shipped)
    print("| source | GPUs | software | measured | predicted | error | 90 % interval | source left out | reserved, measured | predicted |\n|---|---|---|---:|---:|---:|---|---|---:|---:|")
    for each in results:
        row = each["row"]
        memory = f"{row['memory_gib']} GiB" if row["memory_gib"] else ""
        software = ", ".join(part for part in ("compile" if row["compile"] == "yes" else "eager", row["precision"], row["other_metric"].split(";")[0],
                                               row["model"] if each["families"] & {"experts"} else "", row["parallelism"] if mesh_of(row) else "",
                                               "" if row["ac"] != "none" else "no checkpoints", f"{row['seq']} tokens" if int(row["seq"] or 0) > 8192 else "") if part)

        def shown(ends, measured=each["measured"]):
            return f"{ends[0]:.0f} to {ends[1]:.0f}{'' if ends[0] <= measured <= ends[1] else ' (outside)'}"
        print(f"| {row['source'].split(' ')[0].removeprefix('pytorch/')} | {row['gpus']} {row['gpu']} | {software} | {each['measured']:.0f} | {each['predicted']:.0f} | "
              f"{100 * (each['predicted'] / each['measured'] - 1):+.1f} % | {shown((each['low'], each['high']))}{'; fitted' if each['fitted'] else ''} | "
              f"{shown(each['without']) if each['families'] else 'the same'} | {memory} | {each['reserved']:.1f} GiB |")
    print()
    for name in [path.stem for path in arguments.runs]:
        summary(name, [each for each in scored if each["list"] == name])
    print("farthest source, logarithms of faster and slower: " + ", ".join("{} {:.2f} {:.2f}".format(family, *farthest(family, scored)) for family in FAMILIES))
    for reason, count in left_out.items():
        print(f"left out, {count}: {reason}")


if __name__ == "__main__":
    main()
