"""Compares families that Shardlens reads from config.json with what `python -m shardlens.export` records of transformers' models.

    python tests/tools/compare_export.py --bin build/release/bin/shardlens [--batch 4] [--seq 1024] [--hardware 8xH100] [--engine] [--operators] [NAME…]

Small configs (four layers) of every family, in bf16. For each: products and attention by module and phase, with their shapes and FLOPs; bytes
kept for backward; the simulated step on one rank's compute. `--operators` prints by class of operator where time and kept bytes differ.
"""
import argparse
import collections
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

BASE = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
CONFIGS = {
    "llama": {},
    "mistral": {"sliding_window": 512},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "gemma2": {"head_dim": 128, "sliding_window": 512, "num_key_value_heads": 8},
    "gemma3_text": {"head_dim": 128, "sliding_window": 512},
    "phi3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "gemma": {"head_dim": 128, "hidden_act": "gelu_pytorch_tanh"},
    "olmo2": {},
    "olmo3": {"sliding_window": 512},
    "granite": {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0078125, "logits_scaling": 16.0},
    "cohere": {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8,
               "max_position_embeddings": 4096, "use_qk_norm": True, "tie_word_embeddings": False},
    "glm": {"head_dim": 128, "pad_token_id": 0, "eos_token_id": 2},
    "glm4": {"head_dim": 128, "pad_token_id": 0, "eos_token_id": 2},
    "smollm3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "ernie4_5": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "seed_oss": {"head_dim": 128, "attention_dropout": 0.0, "residual_dropout": 0.0},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": {"head_dim": 128, "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 768, "mlp_only_layers": [], "decoder_sparse_step": 1},
    "gpt_oss": {"head_dim": 64, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "deepseek_v3": {"num_key_value_heads": 16, "moe_intermediate_size": 768, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
                    "n_routed_experts": 32, "num_experts_per_tok": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2},
    "opt": {"vocab_size": 32000, "hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 4, "num_attention_heads": 16, "word_embed_proj_dim": 2048, "max_position_embeddings": 4096, "dropout": 0.0},
    "gpt2": {"n_embd": 2048, "n_layer": 4, "n_head": 16, "n_positions": 4096, "vocab_size": 32000, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "mpt": {"d_model": 2048, "n_heads": 16, "n_layers": 4, "vocab_size": 32000, "max_seq_len": 4096},
    "vit": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 16, "image_size": 224, "patch_size": 16,
            "architectures": ["ViTForImageClassification"], "num_labels": 1000},
}
OWN_BASE = ("cohere", "opt", "gpt2", "mpt", "vit")


def config_of(family):
    return {"model_type": family, **({} if family in OWN_BASE else BASE), **CONFIGS[family]}


def simulated(program, model, options, seq, folder):
    """workload.json and the answer of simulate."""
    arguments = ["simulate", "--model", model, "--hardware", options.hardware, "--precision", "bf16", "--batch", str(options.batch), "--json", "--out", folder]
    arguments += ["--stack", "bare" if options.engine else "transformers"] if model.endswith("config.json") else []
    arguments += ["--seq", str(seq)] if seq else []
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)}: exit code {done.returncode}: {done.stderr}")
    plain = {"batch": 1, "m": 0, "n": 0, "k": 0, "flops": 0, "read_bytes": 0, "written_bytes": 0, "saved_bytes": 0}
    operators = [plain | each for each in json.loads((Path(folder) / "workload.json").read_text())["operators"]]
    return operators, json.loads(done.stdout)


def products(operators, kind):
    """Shapes and FLOPs by phase and module. A product of one matrix with itself transposed may be written either way: m and n are sorted."""
    found = collections.Counter()
    for each in operators:
        if each["kind"] == kind and each["m"] > 0:
            m, n = sorted((each["m"], each["n"]))
            found[each["phase"], each["module"] if kind == "gemm" else "", each["batch"], m, n, each["k"], each["flops"]] += 1
    return found


def total(operators, key, kinds=None):
    return sum(each[key] for each in operators if kinds is None or each["kind"] in kinds)


def part_of(each):
    """The class of an operator: what it is for."""
    leaf = each["module"].rsplit(".", 1)[-1]
    if each["kind"] in ("gemm", "attention", "optimizer"):
        return each["kind"]
    if "norm" in leaf or leaf.startswith("ln_"):
        return "norms"
    if each["module"] == "" or leaf in ("lm_head",) or each["kind"] == "loss" or leaf == "root":
        return "loss"
    if "embed" in leaf or leaf in ("wte", "wpe") or "rotary" in leaf:
        return "embeddings"
    if leaf in ("self_attn", "attn", "attention"):
        return "rotary and heads"
    if leaf in ("experts", "gate", "router", "mlp", "act_fn", "act", "activation_fn", "ffn"):
        return "MLP and experts"
    return "sums of layers"


def show(native, exported):
    for key, unit, scale in (("bytes", "GB moved", 1e9), ("saved", "MiB kept", 1 << 20)):
        sums = [collections.Counter() for _ in range(2)]
        for which, operators in enumerate((native, exported)):
            for each in operators:
                sums[which][part_of(each)] += each["read_bytes"] + each["written_bytes"] if key == "bytes" else each["saved_bytes"]
        for part in sorted(set(sums[0]) | set(sums[1])):
            print(f"    {unit:9} {part:18} {sums[0][part] / scale:9.2f} {sums[1][part] / scale:9.2f}")


def compare(family, options):
    from shardlens import export

    seq = None if family == "vit" else options.seq
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config.json").write_text(json.dumps(config_of(family)))
        started = time.monotonic()
        model = export.export(lambda: export.from_transformers(folder, seq, "bfloat16"), (options.batch // 2 or 1, options.batch))
        seconds = time.monotonic() - started
        export.write(model, folder / "model.json")
        native, of_native = simulated(options.bin, str(folder / "config.json"), options, seq or 1, str(folder / "native"))
        exported, of_exported = simulated(options.bin, str(folder / "model.json"), options, seq, str(folder / "exported"))
    row = {"family": family, "seconds": seconds}
    for kind in ("gemm", "attention"):
        a, b = products(native, kind), products(exported, kind)
        row[kind] = sum((a & b).values()), sum(a.values()), sum(b.values())
        row[kind + "_flops"] = total(native, "flops", (kind,)), total(exported, "flops", (kind,))
        if options.operators:
            for name, left in (("only native", a - b), ("only exported", b - a)):
                for each, count in sorted(left.items(), key=str)[:8]:
                    print(f"    {name}: {count} x {each}")
    row["saved"] = tuple(total([e for e in each if e["kind"] != "optimizer"], "saved_bytes") for each in (native, exported))
    row["compute"] = of_native["compute_ns"], of_exported["compute_ns"]
    row["peak"] = of_native["peak_requested_bytes"], of_exported["peak_requested_bytes"]
    row["step"] = of_native["step_ns"], of_exported["step_ns"]
    if options.operators:
        show(native, exported)
    return row


def change(pair):
    return f"{100 * (pair[1] / pair[0] - 1):+.1f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--bin", default="build/release/bin/shardlens")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--hardware", default="8xH100")
    parser.add_argument("--engine", action="store_true", help="the native family as this engine runs it, with fused operators")
    parser.add_argument("--operators", action="store_true")
    options = parser.parse_args()
    print("| family | products equal | FLOPs of products | FLOPs of attention | kept bytes | peak memory | compute | step | export |")
    print("|---|---|---|---|---|---|---|---|---|")
    for family in options.names or CONFIGS:
        row = compare(family, options)
        same, a, b = row["gemm"]
        print(f"| `{family}` | {same} of {max(a, b)} | {change(row['gemm_flops'])} | {change(row['attention_flops']) if row['attention_flops'][0] and row['attention_flops'][1] else 'as products'} "
              f"| {change(row['saved'])} | {change(row['peak'])} | {change(row['compute'])} | {change(row['step'])} | {row['seconds']:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
