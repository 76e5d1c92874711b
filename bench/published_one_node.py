#!/usr/bin/env python3
"""Predicts published steps on one node, to which no constant was fitted: measured, predicted, and whether the 90 % interval has the measured figure.

    bench/published_one_node.py [--bin build/release/bin] [--runs tests/data/one_node_2026.csv tests/data/one_node_more.csv tests/data/one_node_unseen.csv tests/data/one_node_later.csv]

What a source does not
print is torchtitan's default: 8192 tokens (4096 of its DeepSeek 16B), one sample, selective checkpoints (whole blocks of its gpt-oss). "FSDP4 EP2" on eight GPUs is a shard axis of 8 whose experts are
sharded over 4. Only the first row was used to fit a constant (`rows` 1 of "PyTorch
H100-96GB" in sim/hardware/stacks.json); it is listed and not counted. A row that is not simulated is counted with the reason.
torchtitan's rows with experts after April 2026, when it stopped to pad rows (pull request 2774), are simulated as its version 0.3, which it was but for the number. The configurations of
pull request 2080 are simulated without checkpoints, as SimpleFSDP's README starts the model, and with scaled_dot_product_attention, to which its commit d26eb87 changes the 16B model.
SimpleFSDP and GraphTrainer are stacks of their own; GraphTrainer's "eager policy" keeps what selective checkpoints keep.
The ratios of eager and compiled steps of Llama 3 8B and Qwen3 32B in pull request 3105 were used to fit one constant, `elementwise_rate` of Blackwell GPUs; they are marked. Without it the
steps of that source are off by -7.8 to +8.2 % (the ratios by 3 to 6 points, GPT-OSS's by 9).
"B200 power limited": the source does not print the limit, so it is anywhere between the smallest and the vendor's, 200 to 1000 W. float8 with scales for tensors gathers
8 bits, as torchtitan's documents start it (docs/float8.md) and torchao's README says.
Automodel at commit 8d9bfb90e, where its step was published: whole blocks are checkpointed and the router is FakeBalancedGate (its qwen3_moe_30b_te_deepep.yaml), which gives a token eight experts in
a row, all on one rank; parameters stay gathered from the first microbatch to the last, which reduces (moe/parallelizer.py, moe/fsdp_mixin.py); they are bf16, and Adam has foreach. Norms, attention and
the rest are simulated as torchtitan's.
accelerate at commit 917e2a9, units and bf16 reductions as in its utils/fsdp_utils.py; the nodes are p5.48xlarge (trl issue 5713), with 400 Gbps for each GPU. TRL packs samples, which asks for
FlashAttention; it is taken to be FlashAttention-2 and one sample. "Before fix" is simulated without backward prefetch. Steps of the rows that have no tokens/s are from their text.

Automodel's rows with LoRA are simulated as its recipes say, that of 70 B as of the commit that printed it (2013a4dd6, custom_llama3_3_70b_instruct_peft_benchmark.yaml): compiled blocks, attention and
MLP are checkpointed each, adapters of rank 16 of all projections, parameters in bf16, sequence parallel; its last block and root stay unsharded after forward. That it may overlap the collectives of
tensor parallelism with products (async TP), and adapts the head too, is not simulated. Qwen2.5 is stated as Llama, whose projections have no biases.
KempnerForge's nodes have four H200: without NVSwitch (spec 4xH200). Its layers gather their rows each for themselves (kempnerforge/distributed/tensor_parallel.py at 01b461a), and only its
last microbatch reduces gradients (maybe_no_sync in kempnerforge/training/grad.py).

The third list was written down before it was predicted for the first time, and nothing was fitted to it. Other programs than torchtitan are stated as the nearest that has a stack:
KempnerForge as torchtitan (parameters in bf16, the root's unit freed after forward, one H200 without FSDP), gpt-simple, minigpt (both DDP) and ColossalAI as transformers; ColossalAI's ZeRO-2
is FSDP2 that keeps parameters after forward.

The fourth list was written down before it was predicted for the first time, too (commit "Write down 26 more published steps"). TRL is stated as transformers under accelerate, its fused
linear cross-entropy (Liger) as a loss in parts, as many as Liger's rule gives; Halo as transformers with parameters in bf16 and compiled blocks, which fuse what Liger does. Megatron-Bridge is stated as torchtitan with compiled blocks and a
CUDA graph, and parameters that stay gathered from the first microbatch to the last, which reduces.

"source left out": the same with nothing of the row's own team in what the interval is wider for experts and contexts ("families" below).
"""
import argparse
import csv
import itertools
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
QWEN3_32B = {"model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
             "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False}
LLAMA2_7B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
             "vocab_size": 32000, "max_position_embeddings": 4096, "tie_word_embeddings": False}
LLAMA_70B = {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
             "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False}
QWEN25_7B = {"model_type": "llama", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
             "vocab_size": 152064, "max_position_embeddings": 32768, "tie_word_embeddings": False}
QWEN25_32B = {"model_type": "llama", "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8,
              "vocab_size": 152064, "max_position_embeddings": 32768, "tie_word_embeddings": False}
LORA = {"lora": {"r": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}}
LLAMA_124M = {"model_type": "llama", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 12,
              "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": False}
LLAMA_2_8B = {"model_type": "llama", "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 34, "num_attention_heads": 20, "num_key_value_heads": 20,
              "vocab_size": 50304, "max_position_embeddings": 2048, "tie_word_embeddings": True}
GPT_2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50304, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GPT_OSS_20B = {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
               "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "vocab_size": 201088, "max_position_embeddings": 131072, "tie_word_embeddings": False}
QWEN3_8B = {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False}
QWEN3_4B = {"model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": True}
MODELS = {"Llama3.1-8B": LLAMA_8B, "Llama3-8B": LLAMA_8B, "DeepSeek-V3-16B": DEEPSEEK_16B, "Qwen3-MoE-30B": QWEN3_30B, "Qwen3-32B": QWEN3_32B,
          "Qwen3-30B-A3B": QWEN3_30B, "GPT-OSS-20B": GPT_OSS_20B, "Llama2-7B": LLAMA2_7B, "Llama3-70B LoRA": {**LLAMA_70B, **LORA}, "Llama3-8B LoRA": {**LLAMA_8B, **LORA},
          "Qwen2.5-7B LoRA": {**QWEN25_7B, **LORA}, "Qwen2.5-32B LoRA": {**QWEN25_32B, **LORA}, "Llama-124M": LLAMA_124M, "Llama-2.8B": LLAMA_2_8B, "GPT-2": GPT_2,
          "Qwen3-8B": QWEN3_8B, "Qwen3-4B": QWEN3_4B}
TOKENS = {"DeepSeek-V3-16B": "4096"}
HARDWARE = {"H100": "8xH100", "H100-96GB-500W": "8xH100-96", "H100-96GB": "8xH100-96", "B200": "8xB200", "B200 power limited": "8xB200", "GB200": "4xGB200",
            "H100 (2 nodes)": "2x8xH100", "H200": "8xH200", "A100-80GB": "8xA100-80", "B300": "8xB300"}
MATMUL = {"bf16": [], "float8 tensorwise; gather bf16": ["--matmul-dtype", "fp8_tensorwise"], "float8": ["--matmul-dtype", "fp8_tensorwise"], "float8 tensorwise": ["--matmul-dtype", "fp8_tensorwise"],
          "float8 rowwise": ["--matmul-dtype", "fp8_rowwise"], "mxfp8_cublas": ["--matmul-dtype", "mxfp8"], "mxfp8": ["--matmul-dtype", "mxfp8"], "nvfp4": ["--matmul-dtype", "nvfp4"], "mxfp8_cublas_rceil": ["--matmul-dtype", "mxfp8_cublas_rceil"]}
ANY_LIMIT = "200:1000"
FAMILIES = ("experts", "context")


def team_of(row):
    """Whose rows an interval may not know with the source left out."""
    return "mx_formats" if "limited" in row["gpu"] else row["source"].split(" ")[0]


def measured(row):
    """Tokens per second of a GPU."""
    if row["tokens_per_s_per_gpu"]:
        return float(row["tokens_per_s_per_gpu"])
    return int(row["seq"]) * int(row["local_batch"]) / float(re.match(r"step (\d+) ms", row["other_metric"])[1]) * 1e3


def changes(row, key):
    """What a row was measured with, for ratios: without the result."""
    return "" if key == "other_metric" and row[key].startswith("step ") else row[key]


def has_experts(row):
    return not {"moe_intermediate_size", "num_local_experts"}.isdisjoint(MODELS[row["model"]])


def model_of(row):
    model = MODELS[row["model"]]
    kernel = "sdpa" if row["source"].endswith("torchtitan#2080") else "flash_attention_4" if "FlashAttention-4" in row["note"] else None
    return {**model, "attn_implementation": kernel} if kernel else model


def program_of(row):
    """On H100 torchtitan called FlashAttention-2 until pull request 1776 of October 2025. Before PyTorch 2.9 an eager norm was several kernels, and until April 2025 torchtitan's loss was not compiled (pull request 1033).
    The version of #3105 (commit 58b0344 of May 2026) already has the loss of 0.3 and its rotary embedding, of CUDA graphs and one product for queries, keys and values only the latter as an option."""
    if row["source"].startswith(("lb-off/", "victorbjorsvik/", "hpcaitech/", "whitecircle/", "huggingface/trl")):
        return "transformers"
    if row["source"].startswith("huggingface/accelerate"):
        return "transformers-flash-2"
    if row["engine"].startswith(("SimpleFSDP", "GraphTrainer")):
        return "simple-fsdp" if row["engine"].startswith("SimpleFSDP") else "graph-trainer"
    if row["source"].startswith(("pytorch/torchtitan#3105", "pytorch/torchtitan:torchtitan/components/quantization/nvfp4.md")) or has_experts(row) and row["source_date"] > "2026-04":
        return "torchtitan-0.3"
    if row["source_date"] < "2025-05" or row["other_metric"] == "FlashAttention-2":
        return "torchtitan-2024"
    return "torchtitan-2025" if row["source_date"] < "2025-10" else "torchtitan"


def compiles(row):
    return row["compile"] == "yes" or row["model"] == "Llama3-70B LoRA" or row["engine"] == "Halo"


def flags_of(row):
    """The flags of simulate, or why the row is left out."""
    if row["model"] not in MODELS:
        return f"the model {row['model']}"
    if row["other_metric"] == "cuDNN":
        return "cuDNN's attention beside norms of several kernels"
    hardware = "4xH200" if row["source"].startswith("Kempner") else HARDWARE[row["gpu"]]
    out = ["--hardware", hardware, "--stack", program_of(row), "--batch", row["local_batch"] or "1", "--seq", row["seq"] or TOKENS.get(row["model"], "8192"), *MATMUL[row["precision"]]]
    if math.prod(map(int, re.findall(r"(\d+)x", hardware))) != int(row["gpus"]):
        out += ["--world-size", row["gpus"]]
    if "limited" in row["gpu"]:
        out += ["--power-limit", ANY_LIMIT]
    if program_of(row) == "torchtitan-0.3":
        out += ["--no-cuda-graphs"]
    if row["engine"] == "Megatron":
        out += ["--no-sync", "--cuda-graphs"]
    if compiles(row):
        out += ["--compile", "model" if row["other_metric"] == "compile model" else "block"]
    if row["source"].startswith("NVIDIA-NeMo") and has_experts(row):
        out += ["--no-sync", "--optimizer-impl", "foreach"]
    if row["note"].endswith("fused AdamW") and "unfused" not in row["note"]:
        out += ["--optimizer-impl", "fused"]
    accumulated = re.search(r"\bGA (\d+)", row["other_metric"])
    if accumulated:
        out += ["--accumulate", accumulated[1]]
        if row["source"].startswith("Kempner") and "FSDP" in row["parallelism"]:
            out += ["--no-sync"]
    tail = re.search(r"the last (\d+) of \d+ blocks in bf16", row["note"])
    if tail:
        out += ["--matmul-tail", tail[1]]
    if row["other_metric"].startswith("loss_chunks"):
        out += ["--loss-chunks", row["other_metric"].split()[1]]
    if row["other_metric"] == "symm_mem on":
        out += ["--transport", "symmetric"]
    return out


def mesh_of(row):
    """The axes of FSDP, context, tensor and expert parallelism: "FSDP4 CP2". With experts on a mesh of their own FSDP shards the rest over all GPUs."""
    sizes = {"FSDP": int(row["gpus"]), "CP": 1, "EP": 1, "TP": 1}
    for part in row["parallelism"].split():
        name = part.rstrip("0123456789")
        if name in sizes and part != name:
            sizes[name] = int(part[len(name):])
    if sizes["EP"] > 1:
        return {"shard": int(row["gpus"]) // sizes["TP"], "expert": sizes["EP"], "tensor": sizes["TP"]}
    if sizes["TP"] > 1:
        return {"shard": sizes["FSDP"], "tensor": sizes["TP"]}
    return {"shard": sizes["FSDP"], "context": sizes["CP"]} if sizes["CP"] > 1 else None


def saves_of(row):
    """What torchtitan's selective checkpoints keep. Until pull requests 2095 and 2118 of December 2025 that was not cuDNN's attention, nor FlexAttention without compilation: they ran again in
    backward."""
    flash = ("torchtitan-2024",) if "B200" in row["gpu"] else ("torchtitan-2024", "torchtitan-2025")
    of_flash = program_of(row) in flash and not row["model"].startswith("DeepSeek")
    return ["attention", "every_second_product"] if of_flash or row["source_date"] > "2025-12" else ["every_second_product"]


def checkpoints_of(row):
    if row["model"] == "GPT-OSS-20B":  # its configurations in models/gpt_oss/config_registry.py
        return row["ac"] or "full"
    return row["ac"] or "full" if row["source"].startswith("NVIDIA-NeMo") else "none" if row["source"].endswith("torchtitan#2080") else row["ac"]


def plan_of_lora(row, blocks):
    parts = [f"{block}.{half}" for block in blocks for half in ("self_attn", "mlp")] if row["ac"] != "none" else []
    units = [{"modules": block} for block in blocks]
    units[-1]["reshard_after_forward"] = False
    return {"version": 1, "layout": "per_parameter", "dtype": "bf16", "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"},
            "units": [*units, {"modules": "", "reshard_after_forward": False}], "activation_checkpointing": parts, "mesh": mesh_with_tensor(row),
            "sequence_parallel": not row["note"].startswith("whole sequences")}


def mesh_with_tensor(row):
    return {axis: int(re.search(rf"\b{name}(\d+)|$", row["parallelism"])[1] or 1) for axis, name in (("shard", "FSDP"), ("tensor", "TP"))}


def plan_of_others(row, blocks):
    """Of programs other than torchtitan's."""
    plan = {"version": 1, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}}
    parallelism = row["parallelism"].split()
    if parallelism == ["DDP8"]:
        plan["units"] = [{"modules": "", "api": "replicate"}]
        plan["mixed_precision"] = {"param_dtype": "bf16"}
    else:
        plan["layout"] = "per_parameter"
        plan["reshard_after_forward"] = row["other_metric"] != "zero2"
    if row["source"].startswith(("Kempner", "whitecircle")):
        plan["dtype"] = "bf16"
    if row["source"].startswith("Kempner"):
        plan["mesh"] = mesh_with_tensor(row)
        plan["shared_gathers"] = False
    if row["ac"] == "full":
        plan["activation_checkpointing"] = blocks
    if row["ac"] == "halves":
        plan["activation_checkpointing"] = [f"{block}.{half}" for block in blocks for half in ("self_attn", "mlp")]
    return plan


def plan_of_accelerate(row, blocks):
    plan = {"version": 1, "dialect": "fsdp2", "layout": "per_parameter", "activation_checkpointing": blocks,
            "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "bf16", "output_dtype": "bf16"},
            "units": [{"modules": "model.embed_tokens"}, *({"modules": block} for block in blocks),
                      {"modules": ["model.norm", "lm_head"], "reshard_after_forward": False}, {"modules": ""}]}
    if "before fix" in row["engine"]:
        plan["backward_prefetch"] = "none"
    if mesh_of(row):
        plan["mesh"] = mesh_of(row)
    return plan


def plan_of(row):
    """apply_fsdp of torchtitan: until pull request 1094 of July 2025 all but the blocks was one unit, later embedding and head have units of their own."""
    model = MODELS[row["model"]]
    blocks = [f"transformer.h.{i}" for i in range(model["n_layer"])] if "n_layer" in model else [f"model.layers.{i}" for i in range(model["num_hidden_layers"])]
    if "LoRA" in row["model"]:
        return plan_of_lora(row, blocks)
    if row["source"].startswith("huggingface/accelerate") or row["engine"].startswith("TRL"):
        return plan_of_accelerate(row, blocks)
    if row["source"].startswith("Kempner") or program_of(row) == "transformers":
        return plan_of_others(row, blocks)
    units = [*({"modules": block} for block in blocks), {"modules": ""}]
    if row["source_date"] < "2025-08":
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
    if row["source"].startswith("NVIDIA-NeMo"):
        plan |= {"reshard_after_forward": False, "reshard_after_backward": False, "units": [{**unit, "reshard_after_forward": False} for unit in plan["units"]]}
        if has_experts(row):
            plan |= {"dtype": "bf16", "expert_parallel": {"dispatch": "deep_ep", "ranks_per_token": 1}}
    checkpoints = checkpoints_of(row)
    if checkpoints == "none":
        del plan["activation_checkpointing"]
    if checkpoints == "every second block":
        plan["activation_checkpointing"] = blocks[::2]
    return plan if checkpoints in ("full", "none", "every second block") else {**plan, "checkpointing_saves": saves_of(row)}


def families_of(row):
    return {name for name, has in (("experts", has_experts(row)), ("context", (mesh_of(row) or {}).get("context", 1) > 1)) if has}


def halves(result, ends):
    """How much faster and slower than predicted the ends of an interval are, as logarithms."""
    return math.log(ends[1] / result["predicted"]), math.log(result["predicted"] / ends[0])


def beyond(family, results, without=None):
    """How much faster and slower the farthest step of the family was than the ranges of constants allow, as logarithms: independent of these ranges, so a difference of
    squares. Of all teams, or of others than `without`. Steps with Transformer Engine and DeepEP are another program."""
    out = [0.0, 0.0]
    for each in results:
        if family in each["families"] and each["team"] != without and each["row"]["engine"].startswith("FSDP2") and "+" not in each["row"]["engine"]:
            off = math.log(each["measured"] / each["predicted"])
            side = 0 if off > 0 else 1
            out[side] = max(out[side], math.sqrt(max(0.0, off ** 2 - each["constants"][side] ** 2)))
    return out


def without_its_source(result, results):
    """The interval with what its families are off without its own team."""
    parts = [beyond(family, results, result["team"]) for family in result["families"]]
    faster, slower = (math.sqrt(known ** 2 + sum(each[side] ** 2 for each in parts)) for side, known in enumerate(result["constants"]))
    return result["predicted"] * math.exp(-slower), result["predicted"] * math.exp(faster)


def simulated(binary, row, flags):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = model_of(row)
        positions = {"max_position_embeddings": max(int(row["seq"] or 0), model["max_position_embeddings"])} if "max_position_embeddings" in model else {}
        (folder / "config.json").write_text(json.dumps({**model, **positions}))
        (folder / "plan.json").write_text(json.dumps(plan_of(row)))
        command = [binary / "shardlens", "simulate", "--model", folder / "config.json", "--plan", folder / "plan.json", "--json", *flags]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()


def without_stack(flags):
    at = flags.index("--stack")
    return [flag for flag in flags[:at] + flags[at + 2:] if flag != "--no-cuda-graphs"]  # which only some programs have by default


def error(result):
    return result["predicted"] / result["measured"] - 1


def summary(name, results):
    inside = [each["low"] <= each["measured"] <= each["high"] for each in results]
    without = [each["without"][0] <= each["measured"] <= each["without"][1] for each in results]

    def width(ends):
        return 100 * statistics.median((high / low) ** 0.5 - 1 for low, high in ends)
    print(f"{name}: {len(results)} rows, median error {100 * statistics.median(abs(error(each)) for each in results):.1f} %; within the interval {sum(inside)} "
          f"({100 * sum(inside) / len(results):.0f} %), median half-width {width([(each['low'], each['high']) for each in results]):.1f} %; with the source left out {sum(without)} "
          f"({100 * sum(without) / len(results):.0f} %), {width([each['without'] for each in results]):.1f} %")


def print_one_kept(results):
    """The error when another row of the same GPU, and of the same families, corrects the prediction."""
    errors = [abs((1 + error(one)) / (1 + error(kept)) - 1) for one, kept in itertools.permutations(results, 2)
              if one["row"]["gpu"] == kept["row"]["gpu"] and one["families"] == kept["families"]]
    print(f"with one row of the GPU kept: median error {100 * statistics.median(errors):.1f} % of {len(errors)} pairs")


def print_ratios(results):
    """What one change gains within a source: measured, predicted."""
    keys = ("compile", "precision", "other_metric", "ac", "parallelism")
    same = ("source", "gpu", "model", "seq", "local_batch")
    right, near, all_pairs = 0, 0, 0
    for one, other in itertools.combinations(results, 2):
        changed = [key for key in keys if changes(one["row"], key) != changes(other["row"], key)]
        if len(changed) != 1 or any(one["row"][key] != other["row"][key] for key in same):
            continue
        gain, predicted = (100 * (other[key] / one[key] - 1) for key in ("measured", "predicted"))
        all_pairs += 1
        fitted = changed[0] == "compile" and one["row"]["source"] == "pytorch/torchtitan#3105" and one["row"]["model"] != "GPT-OSS-20B"
        right += gain * predicted > 0
        near += abs(gain - predicted) <= 7
        print(f"  {one['row']['source'].split(' ')[0].removeprefix('pytorch/')}, {one['row']['gpu']}: {one['row'][changed[0]]} to {other['row'][changed[0]]}"
              f"{' (fitted)' if fitted else '' if changed[0] == 'compile' else ' (compiled)' if one['row']['compile'] == 'yes' else ' (eager)'}: measured {gain:+.1f} %, predicted {predicted:+.1f} %")
    print(f"ratios: sign right in {right} of {all_pairs}, size within 7 points in {near}")


def print_reserved(results):
    off = [each["reserved"] / float(each["row"]["memory_gib"]) - 1 for each in results if each["row"]["memory_gib"]]
    print(f"reserved memory: within 10 % in {sum(abs(each) <= 0.1 for each in off)} of {len(off)}, {100 * min(off):+.1f} to {100 * max(off):+.1f} %, median error "
          f"{100 * statistics.median(map(abs, off)):.1f} %")


def print_without_stack(results):
    """Without --stack a model runs as the program that its GPU has by default, not as the one that was measured."""
    older = ("A100", "H100")
    for name, of in (("A100 and H100", True), ("newer GPUs", False)):
        rows = [each for each in results if each["row"]["gpu"].startswith(older) == of and each["default"]]
        off = [each["default"]["tokens_per_s"] / int(each["row"]["gpus"]) / each["measured"] - 1 for each in rows]
        inside = sum(low <= each["measured"] * int(each["row"]["gpus"]) <= high for each in rows for low, high in [each["default"]["tokens_per_s_interval"]])
        print(f"without --stack, {name}: {len(rows)} rows, median error {100 * statistics.median(map(abs, off)):.1f} %, within the interval {inside} ({100 * inside / len(rows):.0f} %); "
              f"with it {100 * statistics.median(abs(error(each)) for each in rows):.1f} %, {sum(each['low'] <= each['measured'] <= each['high'] for each in rows)}")


def print_table(results):
    print("| source | GPUs | software | measured | predicted | error (%) | 90 % | reserved (GiB) | predicted |\n|---|---|---|---:|---:|---:|---|---:|---:|")
    for each in results:
        row = each["row"]
        source = row["source"].split(" ")[0].removeprefix("pytorch/").split(":")
        program = row["engine"] if program_of(row) in ("simple-fsdp", "graph-trainer") else "compile" if compiles(row) else "eager"
        software = ", ".join(part for part in (program, row["precision"], row["other_metric"].split(";")[0],
                                               "" if row["model"] in ("Llama3.1-8B", "Llama3-8B") else row["model"],
                                               row["parallelism"] if mesh_of(row) or row["parallelism"] != f"FSDP{row['gpus']}" else "",
                                               {"none": "no checkpoints", "every second block": row["ac"]}.get(checkpoints_of(row), ""), f"{row['seq']} tokens" if int(row["seq"] or 0) > 8192 else "",
                                               f"{row['local_batch']} samples" if int(row["local_batch"] or 1) > 1 else "") if part)

        def shown(ends, measured=each["measured"]):
            return f"{ends[0]:.0f}-{ends[1]:.0f}{'' if ends[0] <= measured <= ends[1] else ' outside'}"
        ends = shown((each["low"], each["high"])) + (" fitted" if each["fitted"] else f"; {shown(each['without'])}" if each["families"] else "")
        print(f"| {source[0]}{':' + pathlib.PurePath(source[1]).name if len(source) > 1 else ''} | {row['gpus']} {row['gpu']} | {software} | {each['measured']:.0f} | {each['predicted']:.0f} | "
              f"{100 * error(each):+.1f} | {ends} | {row['memory_gib']} | {each['reserved']:.1f} |")
    print()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--runs", type=pathlib.Path, nargs="+",
                        default=[ROOT / f"tests/data/one_node_{name}.csv" for name in ("2026", "more", "unseen", "later")])
    arguments = parser.parse_args()
    borrowed = json.loads((ROOT / "sim/hardware/stacks.json").read_text())["borrowed"]
    shipped = {family: [borrowed[family][side]["value"] for side in ("faster", "slower")] for family in FAMILIES}
    results, left_out = [], {}
    for path in arguments.runs:
        with open(path, newline="", encoding="utf-8") as file:
            rows = [{**row, "ac": row["ac"].replace("eager policy", "selective")} for row in csv.DictReader(file)]
        for row in rows:
            flags = flags_of(row)
            predicted = flags if isinstance(flags, str) else simulated(arguments.bin, row, flags)
            if isinstance(predicted, str):
                left_out[predicted] = left_out.get(predicted, 0) + 1
                continue
            ranks = int(row["gpus"])
            low, high = (each / ranks for each in predicted["tokens_per_s_interval"])
            each = {"row": row, "list": path.stem, "families": families_of(row), "team": team_of(row),
                    "measured": measured(row), "predicted": predicted["tokens_per_s"] / ranks, "low": low, "high": high,
                    "reserved": predicted["peak_reserved_bytes"] / 2**30, "fitted": path.stem == "one_node_2026" and row is rows[0]}
            default = simulated(arguments.bin, row, without_stack(flags))
            each["default"] = None if isinstance(default, str) else default
            each["constants"] = [math.sqrt(max(0.0, half ** 2 - sum(shipped[family][side] ** 2 for family in each["families"])))
                                 for side, half in enumerate(halves(each, (low, high)))]
            results.append(each)
    scored = [each for each in results if not each["fitted"]]
    for each in results:
        each["without"] = without_its_source(each, scored)
    print_table(results)
    for name in [path.stem for path in arguments.runs]:
        summary(name, [each for each in scored if each["list"] == name])
    summary("all", scored)
    summary("known limit", [each for each in scored if "limited" not in each["row"]["gpu"]])
    print_one_kept(scored)
    print_without_stack(scored)
    print_reserved(results)
    print_ratios(results)
    print("beyond the ranges of constants, logarithms of faster and slower, rounded up: "
          + ", ".join("{} {:.2f} {:.2f}".format(family, *(math.ceil(100 * each) / 100 for each in beyond(family, scored))) for family in FAMILIES))
    for reason, count in left_out.items():
        print(f"left out, {count}: {reason}")


if __name__ == "__main__":
    main()
