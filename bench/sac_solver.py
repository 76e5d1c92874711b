#!/usr/bin/env python3
"""Compares the activation checkpoints that `search --per-block` chooses with those of PyTorch's solver, under the same memory limit.

    bench/sac_solver.py --bin build/release/bin [--model NAME]… [--limits 0.25,0.5,0.75]     (with the Python of scripts/common.sh's test_python)

PyTorch's solver is torch.distributed._tools.sac_ilp (torch 2.11): an integer program chooses the modules and how much of their activations
is discarded, another one the operators of each that are kept. It is given the operators' times, outputs and saved bytes of our simulator.

Both are compared on a step of one microbatch, sharded over eight H100, and within the plan that the search found: only its checkpoints are
replaced. A limit is a share of the way from the peak with every block checkpointed to that without checkpoints. PyTorch's program counts
activations only, so its limit is what the others leave, and is lowered until the simulator says that its plan fits.

A plan has one selection of what checkpoints keep, PyTorch's solution one for each module. So two figures are given: the step of the plan with
PyTorch's modules and that of our five selections which is then fastest and fits; and the time that PyTorch's own selection runs again, in the
same operator times as ours (but not simulated).
"""
import argparse
import copy
import gzip
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PACKAGES = ["pulp==2.9.0", "pwlf==2.5.2", "scipy==1.17.1", "numpy==2.4.6"]
RANKS = 8
MODELS = {
    "8 blocks of 4096": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8, "num_attention_heads": 32, "seq": 8192},
    "16 blocks of 2048": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16, "num_attention_heads": 16, "seq": 16384},
    "4 blocks of 8192": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 4, "num_attention_heads": 64, "seq": 4096},
}
SAVES = [[], ["attention"], ["attention", "every_second_product"], ["products"], ["attention", "products"]]
GIB = 2**30
UNLIMITED = 900 * 10**12


def site():
    """The folder with PuLP (with its solver CBC) and pwlf; installs them if needed."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "shardlens" / "sac-ilp-pulp-2.9.0"
    if not (cache / "pulp").exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(cache), *PACKAGES], check=True)
    return str(cache)


class Simulator:
    """Our program on one model."""

    def __init__(self, binary, name, folder):
        self.binary, self.folder = binary, folder
        settings = dict(MODELS[name])
        self.seq = settings.pop("seq")
        self.model = folder / "config.json"
        self.model.write_text(json.dumps({"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 32000,
                                          "max_position_embeddings": 131072, **settings}))
        self.blocks = [f"model.layers.{i}" for i in range(settings["num_hidden_layers"])]

    def hardware(self, limit):
        """A spec whose allocator has `limit` bytes."""
        spec = json.loads((pathlib.Path(__file__).parent.parent / "sim/hardware/specs/8xH100.json").read_text())
        spec["name"] = "limited"
        spec["gpu"]["memory_bytes"] = {"value": limit, "source": "the limit of the comparison"}
        spec.pop("outside_memory")
        path = self.folder / "limited.json"
        path.write_text(json.dumps(spec))
        return path

    def run(self, *arguments):
        command = [str(self.binary / "shardlens"), *map(str, arguments), "--model", str(self.model), "--batch", "1", "--seq", str(self.seq), "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        return json.loads(done.stdout)

    def simulate(self, plan, limit, out=None, ranks=RANKS):
        path = self.folder / "plan.json"
        path.write_text(json.dumps(plan))
        more = ["--out", out] if out else []
        return self.run("simulate", "--hardware", self.hardware(limit), "--plan", path, "--world-size", ranks, *more)

    def workload(self, plan, ranks=RANKS):
        """The operators under a plan, and how long each kernel of rank 0 takes, in ms."""
        with tempfile.TemporaryDirectory() as out:
            self.simulate(plan, UNLIMITED, out, ranks)
            operators = json.loads((pathlib.Path(out) / "workload.json").read_text())["operators"]
            with gzip.open(pathlib.Path(out) / "rank0.pt.trace.json.gz") as file:
                events = json.load(file)["traceEvents"]
        kernels = sorted((e["ts"], e["dur"]) for e in events if e.get("cat") == "kernel" and
                         not e["name"].startswith(("fsdp::", "nccl")))
        return operators, [duration * 1e-3 for _, duration in kernels]


class Operators:
    """Forward operators with their times: those of a step on one GPU, in which nothing else runs."""

    def __init__(self, simulator):
        plan = {"version": 1, "mesh": {"shard": 1}, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}}
        operators, times = simulator.workload(plan, ranks=1)
        if len(operators) != len(times):
            sys.exit(f"{len(operators)} operators, but {len(times)} kernels")
        self.rows = [(row, duration) for row, duration in zip(operators, times) if row["phase"] == "forward"]
        self.times = times

    def below(self, module):
        return [(row, duration) for row, duration in self.rows if (row["module"] + ".").startswith(module + ".")]

    def recomputed(self, operators):
        """Time that a plan's operators run again, in ms."""
        return sum(self.times[row["forward"]] for row in operators if row["phase"] == "recompute" and row.get("written_bytes", 0) > 0)


def saved(rows):
    return sum(row.get("saved_bytes", 0) for row, _ in rows)


class Solver:
    """PyTorch's solver on the operators of a model."""

    def __init__(self, operators, blocks):
        from torch.distributed._tools import sac_estimator, sac_ilp
        logging.getLogger(sac_ilp.__name__).setLevel(logging.ERROR)
        self.ilp, self.operators, self.blocks = sac_ilp, operators, blocks
        self.estimator = sac_estimator.SACEstimator()
        self.stats, self.curves = {}, {}
        self.modules = ["", "model.embed_tokens", *(m for b in blocks for m in (b, b + ".self_attn", b + ".mlp")), "model.norm", "lm_head"]
        self.total = saved(operators.rows)

    def stats_of(self, module):
        from torch.distributed._tools.sac_estimator import SACStats
        if module not in self.stats:
            rows = self.operators.below(module)
            memory = [row.get("written_bytes", 0) for row, _ in rows]
            memory[-1] = 0  # as in SACEstimator: the last result is the checkpoint's output
            self.stats[module] = SACStats([row["name"] for row, _ in rows], [duration for _, duration in rows], memory, [], [], [], [], False)
        return self.stats[module]

    def curve_of(self, module):
        stats = self.stats_of(module)
        key = (tuple(stats.runtimes), tuple(stats.memory))
        if key not in self.curves:
            order = self.estimator._get_greedy_order_meta(stats)
            self.curves[key] = self.estimator._get_sac_tradeoff_pwlf_stats(stats, order)
        return self.curves[key]

    def graph(self):
        """The graph that sac_milp takes; sizes of parameters and gradients are 0, because the limit is that of activations."""
        from torch.distributed._tools import ilp_utils
        name = lambda module: "Llama" + ("." + module if module else "")
        ends, total = {}, 0  # activations when a module's forward ends
        rows = self.operators.rows
        for i, (row, _) in enumerate(rows):
            total += row.get("saved_bytes", 0)
            for module in self.modules:
                if not module or (row["module"] + ".").startswith(module + "."):
                    ends[module] = (i, total)
        out = []
        for module in self.modules:
            leaf = not module.startswith("model.layers.") and module != ""
            of = rows if not module else self.operators.below(module)
            stats = {"fqn": name(module), "param_per_module": 0, "grad_per_module": 0, "grad_total": 0, "act_fw_per_module": saved(of),
                     "act_bw_per_module": 0, "act_grad_per_module": 0, "act_total": ends[module][1], "input_per_module": 0, "output_per_module": 0,
                     "fw_runtime_per_module": sum(d for _, d in of), "bw_runtime_per_module": 0.0, "is_leaf": leaf, "sac_runtime": 0,
                     "sac_memory": 0, "n_segments": 0, "slopes": [], "intercepts": [], "breakpoints": [], "tradeoff_curve": {}}
            if not leaf and module:
                curve = self.curve_of(module)
                stats.update(sac_runtime=curve.sac_runtime, sac_memory=curve.sac_memory, n_segments=curve.n_segments,
                             slopes=curve.slopes, intercepts=curve.intercepts)
            elif not module:
                stats.update(sac_runtime=sum(d for _, d in of), sac_memory=max(saved(of), 1))
            out.append(stats)
        # A module ends after those below it.
        post = sorted(self.modules, key=lambda module: (ends[module][0], -module.count(".") if module else 1))
        order = {"fw_pre_order": [name(m) for m in self.modules], "fw_post_order": [name(m) for m in post], "bw_pre_order": [], "bw_post_order": []}
        return ilp_utils.parse_module_info({"mod_order": order, "mod_stats": out})

    def solve(self, budget, any_module):
        """Modules with checkpoints, the time that their discarded results take in ms, and seconds of the solver; None: no solution."""
        units = [f"Llama.{b}{part}" for b in self.blocks for part in (("", ".self_attn", ".mlp") if any_module else ("",))]
        begin = time.monotonic()
        chosen, _, peak = self.ilp.sac_milp(self.graph(), budget / GIB, ac_units=units)
        if peak < 0:
            return None
        again, policies = 0.0, {}
        for name, discarded in chosen.items():
            stats = self.stats_of(name.removeprefix("Llama."))
            key = (round(1 - discarded, 4), tuple(stats.runtimes), tuple(stats.memory))
            if key not in policies:
                policies[key] = self.ilp.get_optimal_checkpointing_policy_per_module(stats, key[0])
            again += sum(duration for keeps, duration in zip(policies[key], stats.runtimes) if not keeps)
        return [name.removeprefix("Llama.") for name in chosen], again, time.monotonic() - begin


def with_checkpoints(plan, modules, saves):
    out = copy.deepcopy(plan)
    out["activation_checkpointing"] = modules
    out["checkpointing_saves"] = saves if modules else []
    return out


def fastest(simulator, plan, modules, limit):
    """The plan with these checkpoints and the best of our selections that fits, and its prediction; None: none fits."""
    found = []
    for saves in SAVES if modules else [[]]:
        now = with_checkpoints(plan, modules, saves)
        prediction = simulator.simulate(now, limit)
        if prediction["fits"]:
            found.append((prediction["step_ns"], now, prediction))
    return min(found, key=lambda each: each[0])[1:] if found else None


def pytorch(simulator, solver, plan, limit, budget, any_module):
    """PyTorch's solution with the largest budget whose plan fits."""
    low, high, best, taken = 0.0, budget, None, 0.0
    for trial in range(6):
        now = high if trial == 0 else (low + high) / 2
        solution = solver.solve(now, any_module)
        fits = solution and fastest(simulator, plan, solution[0], limit)
        if solution:
            taken = max(taken, solution[2])
        if fits:
            best, low = (*fits, solution), now
            if trial == 0:
                break
        elif solution is None:
            low = now
        else:
            high = now
    return (*best, taken) if best else None


def compare(options, name):
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator(options.bin, name, pathlib.Path(folder))
        operators = Operators(simulator)
        solver = Solver(operators, simulator.blocks)
        plain = {"version": 1, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}}
        most = simulator.simulate(plain, UNLIMITED)["peak_reserved_bytes"]
        least = simulator.simulate(with_checkpoints(plain, simulator.blocks, []), UNLIMITED)["peak_reserved_bytes"]
        for share in options.limits:
            limit = int(least + share * (most - least))
            begin = time.monotonic()
            found = simulator.run("search", "--hardware", simulator.hardware(limit), "--precision", "bf16", "--memory-limit", limit,
                                  "--world-size", RANKS, "--per-block")
            taken = time.monotonic() - begin
            plan = found["per_block"]["plan"]
            ours = simulator.simulate(plan, limit)
            row = [name, f"{limit / GIB:.1f}", f"{ours['step_ns'] * 1e-6:.1f}", f"{ours['peak_allocated_bytes'] / GIB:.1f}",
                   f"{operators.recomputed(simulator.workload(plan)[0]):.1f}", f"{taken:.1f}"]
            bare = with_checkpoints(plan, [], [])
            budget = limit - (simulator.simulate(bare, UNLIMITED)["peak_allocated_bytes"] - solver.total)
            for any_module in (False, True):
                if any_module and len(simulator.blocks) > options.most_blocks:
                    row += ["-"] * 5
                    continue
                theirs = pytorch(simulator, solver, plan, limit, budget, any_module)
                if theirs is None:
                    row += ["none fits", "", "", "", ""]
                    continue
                now, prediction, solution, seconds = theirs
                row += [f"{prediction['step_ns'] * 1e-6:.1f}", f"{prediction['peak_allocated_bytes'] / GIB:.1f}",
                        f"{operators.recomputed(simulator.workload(now)[0]):.1f}", f"{solution[1]:.1f}", f"{seconds:.1f}"]
            print("| " + " | ".join(row) + " |", flush=True)
            if options.explain:
                print(found["per_block"]["name"], "|", now["activation_checkpointing"], now["checkpointing_saves"], flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--model", action="append", choices=MODELS, help="compare only this model")
    parser.add_argument("--limits", type=lambda text: [float(each) for each in text.split(",")], default=[0.25, 0.5, 0.75])
    parser.add_argument("--most-blocks", type=int, default=8, help="choose among all modules of models with up to so many blocks [8]")
    parser.add_argument("--explain", action="store_true", help="print the plans too")
    options = parser.parse_args()
    if not (options.bin / "shardlens").is_file():
        parser.error(f"--bin {options.bin}: does not contain shardlens")
    sys.path.insert(0, site())
    columns = ["step", "peak", "again"]
    print("| model | limit | ours: " + " | ".join([*columns, "s"]) + " | PyTorch, blocks: " + " | ".join([*columns, "its own", "s"]) +
          " | PyTorch, any module: " + " | ".join([*columns, "its own", "s"]) + " |")
    print("|---|" + "---:|" * 15)
    for name in options.model or MODELS:
        compare(options, name)


if __name__ == "__main__":
    main()
