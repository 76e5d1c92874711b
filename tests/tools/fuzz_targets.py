#!/usr/bin/env python3
"""Runs the fuzz targets of a build, and adds up what was run; see scripts/fuzz, which builds them first.

    fuzz_targets.py --build DIR --work DIR [--seconds N | --runs N] [TARGET ...]
    fuzz_targets.py --build DIR --work DIR --keep [TARGET ...]
    fuzz_targets.py --table
"""
import argparse
import fcntl
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CORPORA = ROOT / "tests/data/fuzz"
TOTALS = CORPORA / "totals.json"
KEPT = CORPORA / "kept.tar.gz"  # inputs of earlier runs, in a folder for each target
LONGEST = 4096
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # inputs that are read from files are written ten times as fast there
# What each target reads, for the table.
READS = {"reader": "traces: JSON, gzip, zstd", "model": "`config.json`, `model.json`", "plan": "plan files", "workload": "`workload.json`",
         "hardware": "hardware specs", "stacks": "software stacks", "calibration": "calibrations", "baseline": "saved baselines",
         "actions": "`rank<r>.actions.jsonl`", "spool": "spools", "summary": "summaries of ranks", "tensors": "safetensors files",
         "tensor_index": "indexes of safetensors", "checkpoint": "indexes of checkpoints", "training_runs": "CSV of training runs", "collective_tables": "CSV of collectives",
         "capture": "`run.json`", "metrics": "`metrics.jsonl`", "pytorch_checkpoint": "checkpoints of PyTorch", "tokens": "files of tokens",
         "search_state": "states of searches", "project": "projects of the app"}


def command(options, target):
    return [options.build / f"bin/{target}_fuzz"] if target in ("reader", "project") else [options.build / "bin/inputs_fuzz", f"--target={target}"]


def totals():
    return json.loads(TOTALS.read_text()) if TOTALS.exists() else {}


def dictionary(target, path):
    """The texts within the seeds, and reader_fuzz's own dictionary."""
    words = set()
    for seed in (CORPORA / target).iterdir():
        words.update(re.findall(rb'"[A-Za-z_][\w .:/-]{0,40}"', seed.read_bytes()))
        words.update(re.findall(rb"\b[a-z_]{3,30}\b", seed.read_bytes()) if seed.suffix == ".csv" else ())
    lines = ['"' + word.decode().replace("\\", "\\\\").replace('"', '\\"') + '"' for word in sorted(words)[:2000]]
    if target == "reader":
        lines += (ROOT / "tests/fuzz/kineto.dict").read_text().splitlines()
    path.write_text("\n".join(lines) + "\n")


def add_up(target, executions, seconds, edges, last_new):
    """Adds a run to the totals; several may run at once, each on a target of its own."""
    lock = os.open(CORPORA, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        every = totals()
        one = every.setdefault(target, {"executions": 0, "cpu_seconds": 0, "edges": 0, "last_new": 0})
        if last_new > 0:
            one["last_new"] = one["executions"] + last_new
        one["executions"] += executions
        one["cpu_seconds"] = round(one["cpu_seconds"] + seconds)
        one["edges"] = max(one["edges"], edges)
        temporary = TOTALS.with_suffix(".tmp")
        temporary.write_text(json.dumps(dict(sorted(every.items())), indent=1) + "\n")
        temporary.rename(TOTALS)
    finally:
        os.close(lock)


def is_of_library(pc):
    """Whether a line of -print_pcs is of a header outside of the project; without a source line, the name of the function tells."""
    if pc.rpartition(" ")[2].startswith("/usr/"):
        return True
    name = pc.partition(" in ")[2]
    while (shorter := re.sub(r"<[^<>]*>", "", name)) != name:
        name = shorter
    return bool(re.match(r"(?:std|__gnu_cxx|fmt|nlohmann)::", name.partition("(")[0].rpartition(" ")[2]))


def new_edges(log, known):
    """Edges, and the execution that reached the last new one of Shardlens' own code.

    An edge is new if no run before reached as many. A run begins with what its kept inputs reach, which may be a few less. Of the libraries only the
    headers are compiled here: each instance of a container has edges of its own, which are reached one by one long after the code around it.
    """
    edges, last_new, own = known, 0, False
    for new_pc, at, event, cov in re.findall(r"^(?:\s+NEW_PC: (.+)|#(\d+)\s+(\w+)\s+cov: (\d+).*)$", log, re.M):
        if new_pc:
            own = own or not is_of_library(new_pc)
            continue
        if int(cov) > edges:
            edges = int(cov)
            last_new = int(at) if own and event != "INITED" else last_new
        own = False
    return edges, last_new


def fuzz(options, target):
    """Returns whether there was no finding."""
    work = options.work / target
    corpus = work / "corpus"
    unpack(target, corpus)
    (CORPORA / target).mkdir(parents=True, exist_ok=True)
    if too_long := [seed.name for seed in (CORPORA / target).iterdir() if seed.stat().st_size > LONGEST]:
        sys.exit(f"tests/data/fuzz/{target}: {', '.join(too_long)} would be cut off after {LONGEST} bytes, and no longer be valid: make it shorter")
    dictionary(target, work / "words.dict")
    limits = [f"-runs={options.runs}"] if options.runs else [f"-max_total_time={options.seconds}"]
    with tempfile.TemporaryDirectory(prefix="shardlens-fuzz-", dir=MEMORY) as temporary, open(work / "log", "w+") as log:
        process = subprocess.Popen(
            [*command(options, target), *limits, f"-max_len={LONGEST}", f"-dict={work / 'words.dict'}", f"-artifact_prefix={work}/finding-", "-timeout=60",
             "-rss_limit_mb=2048", "-print_final_stats=1", "-print_pcs=1", "-use_value_profile=0", corpus, CORPORA / target],
            stdout=subprocess.DEVNULL, stderr=log, env={**os.environ, "TMPDIR": temporary})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        text = log.read()
    seconds = usage.ru_utime + usage.ru_stime
    executions = max([int(n) for n in re.findall(r"^#(\d+)\s", text, re.M)] + [int(n) for n in re.findall(r"stat::number_of_executed_units: (\d+)", text)] + [0])
    edges, last_new = new_edges(text, totals().get(target, {}).get("edges", 0))
    add_up(target, executions, seconds, edges, last_new)
    print(f"{target:20} {executions:10,} executions in {seconds:6.0f} s of CPU, {edges} edges, last new one of Shardlens at {last_new:,}", flush=True)
    if process.returncode != 0:
        found = re.findall(r"^.*(?:ERROR: |runtime error: |broken: |terminate called|what\(\): ).*$", text, re.M)
        print("\n".join(f"  {line[:200]}" for line in found[:5]) + f"\n  log: {work / 'log'}, input: {work}/finding-*", flush=True)
    return process.returncode == 0


def kept():
    """Bytes of the kept inputs by name, such as spool/0a1b2c3d4e5f."""
    if not KEPT.exists():
        return {}
    with tarfile.open(KEPT) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}


def unpack(target, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in kept().items():
        if name.startswith(target + "/"):
            (folder / Path(name).name).write_bytes(data)


def pack(inputs):
    """The same inputs make the same bytes."""
    temporary = KEPT.with_suffix(".tmp")
    with open(temporary, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(inputs.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    temporary.rename(KEPT)


def keep(options, target):
    """Replaces the kept inputs of a target with the smallest ones that reach every edge which these and its corpus reach."""
    with tempfile.TemporaryDirectory(prefix="shardlens-fuzz-", dir=MEMORY) as temporary:
        before, smallest, corpus = Path(temporary) / "before", Path(temporary) / "smallest", options.work / target / "corpus"
        unpack(target, before)
        smallest.mkdir()
        corpus.mkdir(parents=True, exist_ok=True)
        subprocess.run([*command(options, target), "-merge=1", "-use_counters=0", f"-max_len={LONGEST}", smallest, CORPORA / target, before, corpus], check=True,
                       stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": temporary})
        seeds = {file.read_bytes() for file in (CORPORA / target).iterdir()}
        found = {f"{target}/{file.name[:12]}": file.read_bytes() for file in smallest.iterdir()}
    found = {name: data for name, data in found.items() if data not in seeds}
    pack({name: data for name, data in kept().items() if not name.startswith(target + "/")} | found)
    print(f"{target:20} {len(found)} inputs", flush=True)


def table():
    print("| target | reads | executions | CPU hours | edges | executions since the last new edge of Shardlens |\n|---|---|---|---|---|---|")
    for target, one in totals().items():
        quiet = one["executions"] - one["last_new"]
        print(f"| {target} | {READS[target]} | {one['executions']:,} | {one['cpu_seconds'] / 3600:.2f} | {one['edges']:,} | "
              f"{quiet:,} ({100 * quiet / max(1, one['executions']):.0f} %) |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(READS):
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}; known: {', '.join(READS)}")
    if options.table:
        table()
        return
    step = keep if options.keep else fuzz
    if not all([step(options, target) is not False for target in options.targets or READS]):
        sys.exit(1)


if __name__ == "__main__":
    main()
