#!/usr/bin/env python3
"""Predicts published steps on one node, to which no constant was fitted: measured, predicted, and whether the 90 % interval has the measured figure.

    bench/published_one_node.py [--bin build/release/bin] [--runs tests/data/one_node_2026.csv]

Rows that are not simulated (tensor parallelism with LoRA, other trainers, several nodes) are counted with the reason. What a source does not
print is torchtitan's default: 8192 tokens (4096 of its DeepSeek 16B), one sample, selective checkpoints. "FSDP4 EP2" on eight GPUs is a shard axis of 8 whose experts are
sharded over 4; the row with DeepEP is simulated with c10d's all-to-alls. Only the first row was used to fit a constant (`rows` 1 of "PyTorch
H100-96GB" in sim/hardware/stacks.json); it is listed and not counted.
"B200 power limited": torchao's README, from which these rows are, first called them B100, whose limit is 700 W (NVIDIA's data sheet).
"""
import argparse
import csv
import json
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
          "mxfp8_cublas": ["--matmul-dtype", "mxfp8"], "mxfp8_cublas_rceil": ["--matmul-dtype", "mxfp8"]}
SELECTIVE = ["attention", "every_second_product"]


def program_of(row):
    return "torchtitan-2024" if row["source_date"] < "2025" else "torchtitan"


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
        out += ["--power-limit", "700"]
    if row["compile"] == "yes":
        out += ["--compile", "block"]
    accumulated = re.search(r"\bGA (\d+)", row["other_metric"])
    if accumulated:
        out += ["--accumulate", accumulated[1]]
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
    mesh = mesh_of(row)
    if mesh:
        plan["mesh"] = mesh
        if "expert" in mesh:  # units of their own, as in torchtitan's apply_fsdp
            plan["units"].insert(0, {"modules": "model.layers.*.mlp.experts", "groups": [{"parameters": ["**"], "mesh": "expert"}]})
    return plan if row["ac"] == "full" else {**plan, "checkpointing_saves": SELECTIVE}


def simulated(binary, row, flags):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        positions = {"max_position_embeddings": max(int(row["seq"] or 0), MODELS[row["model"]]["max_position_embeddings"])}
        (folder / "config.json").write_text(json.dumps({**MODELS[row["model"]], **positions}))
        (folder / "plan.json").write_text(json.dumps(plan_of(row)))
        command = [binary / "shardlens", "simulate", "--model", folder / "config.json", "--plan", folder / "plan.json", "--json", *flags]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--runs", type=pathlib.Path, default=ROOT / "tests/data/one_node_2026.csv")
    arguments = parser.parse_args()
    with open(arguments.runs, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    print("| source | GPUs | software | measured | predicted | error | 90 % interval | reserved, measured | predicted |\n|---|---|---|---:|---:|---:|---|---:|---:|")
    errors, inside, widths, left_out = [], [], [], {}
    for index, row in enumerate(rows):
        flags = flags_of(row)
        result = flags if isinstance(flags, str) else simulated(arguments.bin, row, flags)
        if isinstance(result, str):
            left_out[result] = left_out.get(result, 0) + 1
            continue
        ranks, measured = int(row["gpus"]), float(row["tokens_per_s_per_gpu"])
        predicted = result["tokens_per_s"] / ranks
        low, high = (each / ranks for each in result["tokens_per_s_interval"])
        fitted = index == 0
        limited = "limited" in row["gpu"]
        if not fitted:
            errors.append(abs(predicted / measured - 1))
            inside.append(low <= measured <= high)
            widths.append((high / low) ** 0.5 - 1)
        memory = f"{row['memory_gib']}{' GB' if limited else ' GiB'}" if row["memory_gib"] else ""
        software = ", ".join(part for part in ("compile" if row["compile"] == "yes" else "eager", row["precision"], row["other_metric"].split(";")[0], row["parallelism"] if mesh_of(row) else "", f"{row['seq']} tokens" if int(row["seq"] or 0) > 8192 else "") if part)
        print(f"| {row['source'].split(' ')[0].removeprefix('pytorch/')} | {ranks} {row['gpu']} | {software} | {measured:.0f} | {predicted:.0f} | {100 * (predicted / measured - 1):+.1f} % | "
              f"{low:.0f} to {high:.0f}{'' if low <= measured <= high else ' (outside)'}{'; fitted' if fitted else ''} | {memory} | {result['peak_reserved_bytes'] / 2**30:.1f} GiB |")
    print(f"\n{len(errors)} rows that were not fitted: median error {100 * statistics.median(errors):.1f} %, within the interval {sum(inside)} of {len(inside)}, "
          f"median half-width {100 * statistics.median(widths):.1f} %")
    for reason, count in left_out.items():
        print(f"left out, {count}: {reason}")


if __name__ == "__main__":
    main()
