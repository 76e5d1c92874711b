#!/usr/bin/env python3
"""Runs the benchmarks, and compares their ratios with recorded ones; see scripts/bench, which builds the programs first.

    bench/run.py --bin DIR [--quick] [--only NAME,…] [--check | --record]

Every ratio is what Shardlens takes in parts of what the other side takes in the same run: lower is better. bench/ratios.json has the medians of
recorded runs of all benchmarks, by processor, since a ratio of two programs differs from one processor to the next: by what their instructions and
its memory are. A ratio is worse if it is more than MARGIN above the worst that was recorded on this kind of processor, or on any if none was on this
one. --check measures a part with such a ratio, or above a limit of its own, once more, and fails if that is so again. It also fails for a recorded
ratio that its benchmark did not report. --record adds to those of this kind of processor.
"""
import argparse
import copy
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDED = ROOT / "bench" / "ratios.json"
MARGIN = 0.15
KEPT = 8  # recorded runs of a ratio
BUSY = 0.1  # of the processors, used by others: then what needs an idle machine is not judged


def benchmarks(options):
    """The benchmarks by name: what each measures, and its commands."""
    def rounds(whole, flag="--rounds", quick=2):
        return [flag, str(min(whole, quick) if options.quick else whole)]

    binaries = ["--bin", options.bin]
    sample = ROOT / "traces" / "llama-emulated8"
    cost = ["--model", sample, "--tokens", ROOT / "README.md", "--batch", "4", "--seq", "128", "--steps", "80" if options.quick else "200"]
    return {
        "train": ("A training step, beside PyTorch FSDP2, FSDP1, DDP and what the machine allows",
                  # A round of the larger steps differs by 3 % from the next, one of llama-tiny's by 20 %.
                  [["bench/train_bench.py", *binaries, *rounds(5), "--models", "llama-tiny"],
                   ["bench/train_bench.py", *binaries, *rounds(2, quick=1), "--steps", "16", "--models", "six-layers"],
                   ["bench/train_bench.py", *binaries, *rounds(1), "--steps", "30", "--models", "eight-blocks,hsdp-2x2"]]),
        "growth": ("Steps and simulations of 2 to 8 ranks and 10 to 200 units, and larger", [["bench/growth_bench.py", *binaries, *rounds(1)]]),
        "host": ("Host cost of sharding a unit, beside PyTorch FSDP2", [["bench/host_cost.py", *binaries, *rounds(3)]]),
        "recording": ("A step with recording, beside one without", [[options.bin / "recording_cost", *cost, "--out", options.work / "recording"]]),
        "recorder": ("The recorder in PyTorch, beside torch.profiler", [["bench/recorder_cost.py", *rounds(8)]]),
        "traces": ("Reading and analyzing traces, beside a bare simdjson pass and Holistic Trace Analysis",
                   [["bench/trace_bench.py", *binaries, *rounds(9), "--sizes", "10,100,300", "--graph", "300", "--ranks", "8", "--hta", "300"]]),
        "search": ("Simulating many plans, beside llm-analysis on the same plans", [["bench/search_bench.py", *binaries, *rounds(5)]]),
        "checkpoint": ("Saving and loading a run, beside torch.distributed.checkpoint", [["bench/checkpoint_bench.py", *binaries, *rounds(3)]]),
        "experts": ("Experts of a layer, beside transformers", [["bench/expert_times.py", *binaries, *rounds(5)]]),
        "python": ("The Python package, beside the bare interpreter", [["bench/python_cost.py", "--program", options.bin / "shardlens",
                                                                        *rounds(50, "--repeat", 15)]]),
        "programs": ("Schedule, recorder and simulator by themselves", [[options.bin / name] for name in ("schedule_bench", "record_bench", "sim_bench")]),
    }


def processor_times():
    with open("/proc/stat") as file:
        times = [int(word) for word in file.readline().split()[1:9]]
    return sum(times), times[3] + times[4]


def processor():
    """The kind of this machine's processors and their number: those of two machines of a kind give the same ratios."""
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*: (.+)$", text, re.MULTILINE))
    kind = [fields.get("model name", platform.machine()), *(f"{name} {fields[name]}" for name in ("cpu family", "model") if name in fields)]
    return ", ".join([*kind, f"{os.cpu_count()} cores"])


def recorded_on(kind, records):
    """{ratio: entry} of a kind of processor, or of all others together if none was recorded on it."""
    if kind in records:
        return records[kind]
    together = {}
    for entries in records.values():
        for name, entry in entries.items():
            known = together.get(name, {"recorded": []})
            together[name] = {**known, **entry, "recorded": known["recorded"] + entry["recorded"]}
    return together


def used_by_others(seconds=2):
    """Part of the processors that other programs use now."""
    total, idle = processor_times()
    time.sleep(seconds)
    after, idle_after = processor_times()
    return 1 - (idle_after - idle) / max(1, after - total)


def run(command):
    """Shows what the command prints; (its ratios: name to median, lowest and highest; whether it succeeded)."""
    words = [str(word) for word in command]
    if words[0].endswith(".py"):
        words.insert(0, sys.executable)
    found = {}
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("ratio "):
                _, name, *values = line.split()
                numbers = [float(value) for value in values]
                found[name] = numbers if len(numbers) == 3 else numbers * 3
            else:
                print(line, end="", flush=True)
    return found, process.returncode == 0


def measure(parts):
    """Runs parts: name and title of a benchmark, and one of its commands. (Ratios, the part that reported each, parts that are above a limit of their
    own or failed.)"""
    found, reported_by, failed = {}, {}, []
    names = list(dict.fromkeys(name for name, _, _ in parts))
    for before, part in zip([None, *parts], parts):
        name, title, command = part
        if before is None or before[0] != name:
            print(f"\n== {names.index(name) + 1} of {len(names)}, {name}: {title}", flush=True)
        ratios, succeeded = run(command)
        found |= ratios
        reported_by |= {ratio: part for ratio in ratios}
        failed += [] if succeeded else [part]
    return found, reported_by, failed


def label(part):
    name, _, command = part
    return f"{name} ({pathlib.Path(command[0]).name})"


def verdict(name, value, entry, busy):
    if entry is None:
        return "new"
    if entry.get("needs_idle_machine") and busy:
        return "not judged: the machine is busy"
    worst = max(entry["recorded"])
    if value > worst * (1 + MARGIN):
        return f"WORSE than {worst:g} by {value / worst - 1:.0%}"
    return "better" if value < min(entry["recorded"]) * (1 - MARGIN) else "same"


def compare(found, recorded, busy):
    """Prints a row for each ratio; the names of those that are worse."""
    worse = []
    width = max(map(len, found), default=0)
    print(f"\n{'ratio':{width}}  {'now':>7}  {'its rounds':>15}  {'recorded':>15}")
    for name, (value, lowest, highest) in found.items():
        entry = recorded.get(name)
        says = verdict(name, value, entry, busy)
        worse += [name] if says.startswith("WORSE") else []
        known = f"{min(entry['recorded']):.3g} to {max(entry['recorded']):.3g}" if entry else ""
        note = " (needs an idle machine)" if entry and entry.get("needs_idle_machine") and "busy" not in says else ""
        print(f"{name:{width}}  {value:7.3g}  {f'{lowest:.3g} to {highest:.3g}':>15}  {known:>15}  {says}{note}")
    return worse


def absent(found, recorded, chosen):
    """Recorded ratios of the chosen benchmarks that were not reported."""
    return [name for name in recorded if name.split("/")[0] in chosen and name not in found]


def record(found, kind, records):
    """Adds to what was recorded on this kind of processor. What needs an idle machine does so on each."""
    entries = records.setdefault(kind, {})
    idle = {name for each in records.values() for name, entry in each.items() if entry.get("needs_idle_machine")}
    for name, (value, *_) in found.items():
        entry = entries.setdefault(name, {"recorded": [], **({"needs_idle_machine": True} if name in idle else {})})
        entry["recorded"] = [*entry["recorded"], value][-KEPT:]
    records[kind] = dict(sorted(entries.items()))
    temporary = RECORDED.with_suffix(".tmp")
    temporary.write_text(json.dumps(records, indent=1) + "\n")
    temporary.rename(RECORDED)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "bench")
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    known = benchmarks(options)
    chosen = [name for name in options.only.split(",") if name] or list(known)
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"--only: '{unknown[0]}'; expected {', '.join(known)}")
    records = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    kind = processor()
    recorded = copy.deepcopy(recorded_on(kind, records))  # what this run records is not what it is compared with
    if kind not in records:
        print(f"No ratio was recorded on this processor ({kind}): they are compared with those of others, and may differ for that reason alone.")
    busy = used_by_others()
    if busy > BUSY:
        print(f"Other programs use {busy:.0%} of this machine: ratios that need an idle one are not judged, and all vary more.")
    parts = [(name, known[name][0], command) for name in chosen for command in known[name][1]]
    found, reported_by, failed = measure(parts)
    worse = compare(found, recorded, max(busy, used_by_others()) > BUSY) if found else []
    if options.record:
        record(found, kind, records)
        print(f"recorded in {RECORDED}")
    suspects = [part for part in parts if part in failed or any(reported_by[name] == part for name in worse)]
    if options.check and suspects:
        print(f"\nOnce more, because another program may have disturbed it: {', '.join(map(label, suspects))}")
        again, _, failed_again = measure(suspects)
        worse_again = compare(again, recorded, used_by_others() > BUSY) if again else []
        worse, failed = [name for name in worse if name in worse_again], [part for part in failed if part in failed_again]
    if failed:
        print(f"above a limit of its own, or failed: {', '.join(map(label, failed))}")
    missing = absent(found, recorded, chosen) if options.check else []
    if options.check:
        print(f"worse than recorded: {', '.join(worse)}" if worse else "no ratio is worse than recorded")
    if missing:
        print(f"not reported, although recorded: {', '.join(missing)}")
    return 1 if failed or (options.check and (worse or missing)) else 0


if __name__ == "__main__":
    sys.exit(main())
