#!/usr/bin/env python3
"""Runs plans, simulations, searches, advice, reports and the app's figures on models and plans made at random.

    check_trees.py --bin DIR [--seeds A:B] [--figures] [--keep DIR]

Module trees of any shape: blocks in lists, dictionaries, several or nested lists, or in none; shared and frozen parameters, names with any character, steps
with operators or without. Plans name their units in any way. No program may crash: each ends with a documented exit code, and an error is one line that
does not say "internal error". Exit 1 if one does not; its seed and command are printed. --figures: for each tenth model also `gui --figures`. --keep:
leave the inputs of failures in DIR.
"""
import argparse
import concurrent.futures
import gzip
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

NAMES = ("embed", "norm", "head", "proj", "mlp", "attn", "layers", "blocks", "encoder", "0", "17")
ODD_NAMES = ("a-b", "x y", "ü", "*", "b*", "[0]", 'q"', "back\\slash", "comma, x", "class:X", "(root)", "<&>", "tab\t", "_orig_mod", "名")
CLASSES = ("Linear", "Embedding", "LayerNorm", "Block", "Attention", "MLP", "MultiheadAttention", "Model")
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "replicate")
DTYPES = ("float32", "bfloat16", "float16")
SPECS = ("8xH100", "8xA100-40", "4xPCIe")


class Tree:
    """A model.json. `chance` decides everything."""

    def __init__(self, chance):
        self.chance = chance
        self.modules, self.parameters, self.calls = [], [], []
        self.dtype = chance.choice(DTYPES)
        self.add("", "Model")
        self.call("", self.model)

    def add(self, fqn, kind, forward=True):
        self.modules.append({"fqn": fqn, "class": kind, "forward": forward})
        return fqn

    def name(self, parent, taken, numbers=False):
        while True:
            name = str(len(taken)) if numbers else self.chance.choice(ODD_NAMES if self.chance.random() < 0.1 else NAMES)
            if name not in taken:
                taken.add(name)
                return f"{parent}.{name}" if parent else name
            numbers = self.chance.random() < 0.3

    def call(self, fqn, body):
        self.calls.append(">" + fqn)
        body()
        self.calls.append("<" + fqn)

    def leaf(self, fqn):
        self.add(fqn, self.chance.choice(CLASSES))
        for name in self.chance.sample(("weight", "bias", "scale"), self.chance.choice((0, 1, 1, 2))):
            self.parameter(f"{fqn}.{name}")
        if self.chance.random() < 0.95:  # a module may have no forward of its own in a step, such as a tied head
            for _ in range(self.chance.choice((1, 1, 1, 1, 1, 2))):
                self.call(fqn, lambda: self.calls.append(("use", fqn)))

    def parameter(self, name):
        row = {"name": name, "shape": [], "dtype": self.dtype if self.chance.random() < 0.9 else self.chance.choice(DTYPES), "requires_grad": self.chance.random() < 0.95}
        first = [each for each in self.parameters if "same_as" not in each]
        if first and self.chance.random() < 0.06:
            other = self.chance.choice(first)
            row = {**other, "name": name, "same_as": other["name"]}
        else:
            row["shape"] = [self.chance.choice((1, 2, 3, 8, 64, 257)) for _ in range(self.chance.choice((0, 1, 1, 2, 2, 3)))]
        self.parameters.append(row)

    def block(self, fqn, kind):
        self.add(fqn, kind)

        def body():
            taken = set()
            for _ in range(self.chance.randint(0, 3)):
                self.leaf(self.name(fqn, taken))
        self.call(fqn, body)

    def container(self, fqn, depth=0):
        kind = self.chance.choice(("ModuleList", "ModuleDict", "ModuleDict", "Sequential"))
        self.add(fqn, kind, forward=kind == "Sequential" or self.chance.random() < 0.05)
        numbers, one, taken = kind != "ModuleDict" or self.chance.random() < 0.5, self.chance.random() < 0.7, set()
        classes = [self.chance.choice(CLASSES)] if one else CLASSES

        def members():
            for _ in range(self.chance.choice((0, 1, 1, 2, 3, 4, 9))):
                name = self.name(fqn, taken, numbers)
                if depth < 2 and self.chance.random() < 0.15:
                    self.container(name, depth + 1)
                else:
                    self.block(name, self.chance.choice(classes))
        if kind == "Sequential":
            self.call(fqn, members)
        else:
            members()

    def model(self):
        taken = set()
        for _ in range(self.chance.randint(0, 5)):
            name = self.name("", taken)
            shape = self.chance.random()
            if shape < 0.5:
                self.container(name)
            elif shape < 0.6:
                self.block(name, self.chance.choice(CLASSES))
            else:
                self.leaf(name)
        if not self.parameters or self.chance.random() < 0.1:
            self.parameter("p")
            self.calls.append(("use", ""))

    def step(self, batch, seq, shape):
        """The step of the calls; `shape` makes the same operators again."""
        chance, tensors, operators, order = random.Random(shape), [], [], []

        def tensor(parameter=False):
            row = {"id": len(tensors), "bytes": chance.choice((0, 4, 1024, 1 << 20)) * (1 if parameter else batch), "dtype": self.dtype if chance.random() < 0.9 else "int64",
                   "storage": chance.choice((len(tensors), chance.randint(0, len(tensors)))), "parameter": parameter}
            tensors.append(row)
            return row["id"]

        def operator(module, phase, forward=None):
            kind = chance.choice(("gemm", "attention", "embedding", "norm", "elementwise", "loss", "grouped_gemm", "other"))
            row = {"id": len(operators), "name": f"aten::{kind}", "kind": kind, "phase": phase, "module": module, "flops": chance.choice((0, 1000, 10 ** 9)) * batch,
                   "inputs": [tensor(chance.random() < 0.3) for _ in range(chance.randint(0, 2))], "outputs": [tensor() for _ in range(chance.randint(0, 2))],
                   "saved": [tensor(chance.random() < 0.2) for _ in range(chance.randint(0, 2))], "forward": forward}
            if kind in ("gemm", "attention", "grouped_gemm"):
                row["product"] = [1, batch * chance.choice((1, 64)), 64, 64]
            if tensors and chance.random() < 0.2:  # a tensor that another operator made
                row["inputs"].append(chance.choice(tensors)["id"])
            operators.append(row)
            return row["id"]
        for each in self.calls:
            if isinstance(each, str):
                order.append(each)
                continue
            for _ in range(chance.choice((1, 1, 2))):
                order.append(f"o{operator(each[1], 'forward')}")
        for forward in [row for row in operators if row["phase"] == "forward"][::-1]:
            for _ in range(chance.choice((0, 1, 1, 2))):
                order.append(f"o{operator(forward['module'], 'backward', forward['id'])}")
        return {"batch": batch, "seq": seq, "tensors": tensors, "operators": operators, "order": order}

    def file(self):
        chance = self.chance
        out = {"shardlens_model": 1, "name": "Model", "dtype": self.dtype, "origin": {"made_by": chance.choice(("shardlens.export", "shardlens.record 1"))},
               "modules": self.modules, "parameters": self.parameters}
        if chance.random() < 0.9:
            shape, seq = chance.randrange(10 ** 9), chance.choice((None, 1, 16))
            out["steps"] = [self.step(batch, seq, shape) for batch in chance.choice(((1,), (1, 2), (2, 3)))]
        return out

    def some_module(self):
        return self.chance.choice(self.modules)["fqn"]

    def glob(self):
        fqn = self.some_module()
        kind = self.chance.random()
        parts = fqn.split(".")
        if kind < 0.5:
            return fqn
        if kind < 0.7:
            parts[self.chance.randrange(len(parts))] = "*"
            return ".".join(parts)
        return self.chance.choice(("**", "*", "**." + parts[-1], f"class:{self.chance.choice(CLASSES)}", f"size:{self.chance.choice((1, 100, 5000))}", fqn + ".*"))

    def plan(self, ranks):
        """A plan that may not fit the model."""
        chance = self.chance

        def flag(out, key, value, share=0.2):
            if chance.random() < share:
                out[key] = value()
        out = {"version": 1}
        fsdp1 = chance.random() < 0.25
        reshard = (True, False, None) if fsdp1 else (True, False, None, 1, 2, ranks)

        def precision():
            return {key: chance.choice(("fp32", "bf16", "fp16", None)) for key in ("param_dtype", "reduce_dtype", "output_dtype")}

        def unit():
            row = {"modules": self.glob() if chance.random() < 0.7 else [self.glob() for _ in range(chance.randint(1, 3))]}
            if chance.random() < 0.12:
                row["api"] = "replicate"
                flag(row, "bucket_cap_mb", lambda: chance.choice((0.001, 1, 25)))
                return row
            flag(row, "reshard_after_forward", lambda: chance.choice(reshard))
            flag(row, "mixed_precision", precision)
            flag(row, "cpu_offload", lambda: chance.random() < 0.5, 0.05)
            flag(row, "optimizer_in_backward", lambda: True, 0.05)
            if not fsdp1:
                flag(row, "unshard_in_backward", lambda: False, 0.05)
                flag(row, "reshard_after_backward", lambda: False, 0.1)
            return row

        def lists():
            return {self.some_module(): [self.some_module() for _ in range(chance.randint(0, 3))] for _ in range(chance.randint(1, 3))}
        if fsdp1:
            out["dialect"] = "fsdp1"
        flag(out, "layout", lambda: "per_parameter", 0.5)
        flag(out, "views", lambda: "frozen", 0.1)
        if chance.random() < 0.7:
            units = [unit() for _ in range(chance.randint(0, 3))]
            names = {name for row in units for name in ([row["modules"]] if isinstance(row["modules"], str) else row["modules"])}
            out["units"] = units + ([{"modules": ""}] if not units or "" not in names and chance.random() < 0.95 else [])
        flag(out, "mesh", lambda: chance.choice(({"replicate": 2}, {"shard": 1}, {"replicate": 2, "shard": max(1, ranks // 2)}, {"shard": ranks})))
        flag(out, "reshard_after_forward", lambda: chance.choice(reshard))
        flag(out, "forward_prefetch", lambda: chance.choice((0, 1) if fsdp1 else (0, 1, 2, 9)))
        flag(out, "backward_prefetch", lambda: chance.choice(("pre", "none", "post") if fsdp1 else ("pre", "none")))
        flag(out, "forward_prefetch", lists, 0.1)
        flag(out, "backward_prefetch", lists, 0.1)
        flag(out, "mixed_precision", precision)
        flag(out, "limit_all_gathers", lambda: False, 0.1)
        flag(out, "separate_reduce_scatter_group", lambda: True, 0.1)
        if not fsdp1:
            flag(out, "keep_unsharded_storage", lambda: True, 0.1)
            flag(out, "reduce_scatter_unused_params", lambda: True, 0.1)
            flag(out, "reduce_scatter_max_input_buffers", lambda: chance.randint(1, 4), 0.1)
            flag(out, "backward_finalization", lambda: chance.choice(("waits", "reduces")), 0.1)
        flag(out, "activation_checkpointing", lambda: [self.glob() for _ in range(chance.randint(0, 2))])
        flag(out, "checkpointing_saves", lambda: ["attention", "products"], 0.1)
        flag(out, "ignored_modules", lambda: [self.glob()], 0.05)
        flag(out, "ignored_parameters", lambda: [chance.choice(self.parameters)["name"]], 0.05)
        flag(out, "frozen_parameters", lambda: [chance.choice(self.parameters)["name"]], 0.05)
        return out


class Broken(Exception):
    """A program that crashed or answered wrongly."""


class Case:
    """One model, and all that is asked about it."""

    def __init__(self, seed, options, folder):
        self.chance, self.options, self.folder = random.Random(seed), options, folder
        self.figures = options.figures and seed % 10 == 0
        self.codes = {}

    def ask(self, *arguments):
        command = [str(each) for each in arguments]
        done = subprocess.run([self.options.bin / "shardlens", *command], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              check=False, timeout=300)
        self.codes[command[0], done.returncode] = self.codes.get((command[0], done.returncode), 0) + 1
        lines = done.stderr.strip().split("\n")
        wrong = done.returncode not in (0, 2, 3, 4) and (command[0], done.returncode) not in (("search", 1), ("advise", 5))
        wrong = wrong or "internal error" in done.stderr or "Sanitizer" in done.stderr or "runtime error" in done.stderr
        if wrong or (done.returncode in (2, 3, 4) and (len(lines) != 1 or not lines[0].startswith("shardlens"))):
            raise Broken(f"shardlens {' '.join(command)}: exit {done.returncode}: {done.stderr[-3000:]}")
        return done.returncode == 0

    def ask_of_run(self, run):
        chance = self.chance
        self.ask("analyze", run, *chance.choice(((), ("--by", "unit"), ("--json",))))
        self.ask("advise", run, *chance.choice(((), ("--json",), ("--top", 1))))
        self.ask("report", run, "--out", f"{run}.html")
        self.ask("simulate", "--workload", run, *chance.choice(((), ("--strategy", chance.choice(STRATEGIES)), ("--plan", "plan.json"))))
        self.ask("plan", "--from-trace", run)
        if self.figures:
            self.ask("gui", run, "--figures", *chance.choice(((), ("--plan", "plan.json"))))

    def as_recorded(self, model):
        """The run as shardlens.record would have written it: of a program with this model."""
        run = self.folder / "recorded"
        shutil.copytree(self.folder / "run", run)
        for name in ("config.json", "workload.json"):
            (run / name).unlink(missing_ok=True)
        for path in run.glob("*.pt.trace.json.gz"):
            trace = json.loads(gzip.decompress(path.read_bytes()))
            for event in trace["traceEvents"]:
                if event.get("cat") == "cpu_op":
                    event.setdefault("args", {}).update({"Input Dims": [[16, 8], [8, 8]], "Input type": ["float", "float"]})
            path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
        model["origin"] = {"made_by": "shardlens.record 1"}
        model.pop("steps", None)
        (run / "model.json").write_text(json.dumps(model))
        about = json.loads((run / "run.json").read_text())
        step = {"batch": about["options"]["batch"], "seq": about["options"]["seq"], "accumulate": about["options"]["accumulate"], "sync_every_microbatch": True,
                "optimizer": "adamw"}
        (run / "run.json").write_text(json.dumps({"schema": 2, "recorder": "shardlens.record", "world_size": about["options"]["world_size"], "step_settings": step}))
        if self.chance.random() < 0.2:
            (run / "plan.json").unlink()

    def run(self):
        chance = self.chance
        tree = Tree(chance)
        model, ranks = tree.file(), chance.choice((1, 2, 2, 3, 4, 8))
        (self.folder / "model.json").write_text(json.dumps(model))
        (self.folder / "plan.json").write_text(json.dumps(tree.plan(ranks)))
        of_model, of_plan = ("--model", "model.json", "--world-size", ranks), chance.choice((("--plan", "plan.json"), ("--strategy", chance.choice(STRATEGIES))))
        self.ask("plan", *of_model, *of_plan, *chance.choice(((), ("--json",), ("--actions",))))
        if chance.random() < 0.3:
            self.ask("search", *of_model, "--hardware", chance.choice(SPECS), "--memory-limit", chance.choice(("1MiB", "1GiB")), *chance.choice(((), ("--per-block",), ("--json",))))
        if self.figures:
            self.ask("gui", "--model", "model.json", "--hardware", SPECS[0], "--figures")
        simulated = ("simulate", *of_model, "--hardware", chance.choice(SPECS), "--out", "run", "--accumulate", chance.choice((1, 1, 2)))
        if self.ask(*simulated, *of_plan) or self.ask(*simulated):
            self.ask_of_run("run")
            self.as_recorded(model)
            self.ask_of_run("recorded")


def try_seed(seed, options):
    with tempfile.TemporaryDirectory(prefix="shardlens-trees-") as folder:
        case = Case(seed, options, pathlib.Path(folder))
        try:
            case.run()
        except (Broken, subprocess.TimeoutExpired) as problem:
            if options.keep:
                shutil.copytree(folder, options.keep / str(seed), dirs_exist_ok=True)
            return case.codes, f"seed {seed}: {problem}"
        return case.codes, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--seeds", default="0:100")
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    first, end = map(int, options.seeds.split(":"))
    codes, failures = {}, 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for of_seed, failure in pool.map(lambda seed: try_seed(seed, options), range(first, end)):
            for key, count in of_seed.items():
                codes[key] = codes.get(key, 0) + count
            if failure:
                failures += 1
                print(failure)
    print(f"{end - first} models, {failures} failures; commands by exit code:")
    for (command, code), count in sorted(codes.items()):
        print(f"  {command:9} {code:4} {count}")
    return 1 if failures or not codes else 0


if __name__ == "__main__":
    sys.exit(main())
