#!/usr/bin/env python3
"""Compares what `simulate --workload` predicts for one program in the forms of rewritten_programs.py with what the changed programs take.

    what_if_rewritten.py OUT [FORM…] [--rounds 8] [--steps 2] [--recorded 8] [--table]     run it with build/test-python

A model of larger blocks trains on two Gloo ranks with one thread each: as it is, with parameters that are kept or gathered again in backward
("resharding", the other of the two), and with two blocks in a unit or bucket ("pairs"). Of a form all variants train alternately in one process
per rank, so that a busy machine slows them alike. The first is then recorded into OUT/FORM/run, and the program simulates its own plan and the
others. An eager SimpleFSDP program has neither buckets nor a way to gather again, so only its own plan is compared.

Only this needs a quiet machine; --table reads what was measured. Changes are means over rounds with their standard errors, as in
what_if_fsdp2.py. Asked: the own plan within 5 % in the median of the forms; each change with the sign of the measured one, within the larger of
3 % of the step and two standard errors. A change smaller than these bounds has no sign. Exit code 1 if something is not as asked.
"""
import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import rewritten_programs as programs  # noqa: E402

BASE, RESHARDING, PAIRS = "base", "resharding", "pairs"
FORMS = programs.FORMS
# Larger blocks than those of the fixtures.
SIZES = {"WIDTH": 384, "HIDDEN": 1024, "LAYERS": 4, "VOCABULARY": 4096, "BATCH": 4, "SEQ": 128}


def variants_of(form):
    if form == "simple":
        return {BASE: {}}
    freed = form != "simple-compiled"  # a compiler gathers again only where it is told to
    variants = {BASE: {"resharded": freed}, RESHARDING: {"resharded": not freed}}
    if form != "simple-compiled":
        variants[PAIRS] = {"resharded": freed, "together": 2}
    return variants


def step(model, optimizer, generator):
    import torch
    from torch.nn import functional as F

    tokens = torch.randint(0, programs.VOCABULARY, (programs.BATCH, programs.SEQ), generator=generator)
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def work(rank, form, store, options):
    import torch
    import torch._dynamo
    import torch.distributed as dist

    import shardlens

    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64  # the variants share the code of their modules
    dist.init_process_group("gloo", store=dist.FileStore(store, programs.RANKS), rank=rank, world_size=programs.RANKS)
    generator = torch.Generator().manual_seed(rank)
    trained = {}
    for variant, changes in variants_of(form).items():
        model = programs.program(form, **changes)
        trained[variant] = model, torch.optim.SGD(model.parameters(), lr=0.01)
    times = {variant: [] for variant in trained}
    for number in range(options.rounds + 1):
        for variant in random.Random(number).sample(list(trained), len(trained)):  # the same order on both ranks
            taken = []
            for _ in range(options.steps if number > 0 else 3):  # the first round compiles
                dist.barrier()
                begin = time.perf_counter()
                step(*trained[variant], generator)
                dist.barrier()
                taken.append(time.perf_counter() - begin)
            if number > 0:
                times[variant].append(taken)
    model, optimizer = trained[BASE]
    del trained
    gc.collect()
    with shardlens.record(options.out / form / "run", model=model, optimizer=optimizer, warmup=3, steps=options.recorded, force=True) as recording:
        for _ in range(3 + options.recorded):
            recording.step(step(model, optimizer, generator))
    if rank == 0:
        (options.out / form / "times.json").write_text(json.dumps(times))
    dist.destroy_process_group()


def measure(form, options):
    (options.out / form).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-B", __file__, str(options.out), form, "--store", str(Path(directory) / "store"),
                   *(str(each) for name in ("rounds", "steps", "recorded") for each in (f"--{name}", getattr(options, name)))]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(programs.RANKS)]
        codes = [rank.wait(timeout=1800) for rank in ranks]
    if any(codes):
        raise SystemExit(f"{form}: the ranks ended with {codes}")


def recorded_plan(run):
    from shardlens.program import ask

    return json.loads((run / "plan.json").read_text()) if (run / "plan.json").exists() else ask(["plan", "--from-trace", str(run)])["plan"]


def modules_of(unit):
    return unit["modules"] if isinstance(unit["modules"], list) else [unit["modules"]]


def pairs_of(plan):
    """Two blocks a unit; lists of prefetches name the units that blocks are in now."""
    pair_of, units, pairs = {}, [], {}
    for unit in plan["units"]:
        modules = modules_of(unit)
        block = modules[0].split(".")[1] if modules[0].startswith("layers.") else None
        if block is None:
            units.append(unit)
            continue
        pair = pairs.setdefault(int(block) // 2, {**unit, "modules": []})
        if not pair["modules"]:
            units.append(pair)
        pair["modules"] += modules
        pair_of.update({module: pair["modules"][0] for module in modules})
    out = {**plan, "units": units}
    for key in ("forward_prefetch", "backward_prefetch"):
        if isinstance(plan.get(key), dict):
            lists = {}
            for hook, targets in plan[key].items():
                own = lists.setdefault(pair_of.get(hook, hook), [])
                for target in targets:
                    target = pair_of.get(target, target)
                    if target not in own and target != pair_of.get(hook, hook):
                        own.append(target)
            out[key] = {hook: targets for hook, targets in lists.items() if targets}
    return out


def plan_of(variant, plan, freed):
    plan = json.loads(json.dumps(plan))
    if variant == PAIRS:
        return pairs_of(plan)
    for unit in plan["units"]:
        if modules_of(unit) not in ([""], ["embed"]):  # backward does not read an embedding
            unit["reshard_after_forward"] = not freed
    return plan


def compared(form, options):
    from what_if_fsdp2 import by_round, difference

    from shardlens.program import ask

    run, times = options.out / form / "run", json.loads((options.out / form / "times.json").read_text())
    own = ask(["simulate", "--workload", str(run)])
    out = {"form": form, "step_ms": statistics.median(by_round(times[BASE])) * 1e3, "own": own["baseline"]["error"],
           "recorded_ms": own["baseline"]["measured_step_ns"] / 1e6, "changes": {}}
    plan, changed = recorded_plan(run), options.out / form / "changed.json"
    for variant, settings in variants_of(form).items():
        if variant != BASE:
            changed.write_text(json.dumps(plan_of(variant, plan, variants_of(form)[BASE]["resharded"])))
            measured, error = difference(times[BASE], times[variant])
            predicted = ask(["simulate", "--workload", str(run), "--plan", str(changed)])["step_ns"] / own["step_ns"] - 1
            bound = max(0.03, 2 * error)
            right = abs(measured - predicted) <= bound and (measured * predicted > 0 or min(abs(measured), abs(predicted)) <= bound)
            out["changes"][variant] = {"measured": measured, "error": error, "predicted": predicted, "right": right}
    return out


def table(rows):
    """Whether all is as asked."""
    print(f"{'form':16} {'step':>9} {'recorded':>9} {'own plan':>9}  predicted (measured ± standard error)")
    for row in rows:
        cells = [f"{variant} {each['predicted']:+.1%} ({each['measured']:+.1%} ± {each['error']:.1%}){'' if each['right'] else ' NO'}"
                 for variant, each in row["changes"].items()]
        print(f"{row['form']:16} {row['step_ms']:6.0f} ms {row['recorded_ms']:6.0f} ms {row['own']:+9.1%}  {'; '.join(cells) or '-'}")
    changes = [each for row in rows for each in row["changes"].values()]
    own = statistics.median(abs(row["own"]) for row in rows)
    right = sum(each["right"] for each in changes)
    print(f"own plan: {own:.1%} in the median; changes as asked: {right} of {len(changes)}")
    return own <= 0.05 and right == len(changes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("forms", nargs="*", metavar="FORM")
    for name, default in (("rounds", 8), ("steps", 2), ("recorded", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--table", action="store_true", help="measures nothing")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store")
    options = parser.parse_args()
    if set(options.forms) - set(FORMS):
        parser.error(f"expected forms among {', '.join(FORMS)}")
    for name, value in SIZES.items():
        setattr(programs, name, value)
    if options.rank is not None:
        try:
            work(options.rank, options.forms[0], options.store, options)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)  # the other rank waits in a collective
        return 0
    rows = []
    for form in options.forms or FORMS:
        if not options.table:
            measure(form, options)
        rows.append(compared(form, options))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return int(not table(rows))


if __name__ == "__main__":
    sys.exit(main())
