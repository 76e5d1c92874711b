#!/usr/bin/env python3
"""Compares the times of reading a trace and of a minimal simdjson pass, of compressed and plain traces, of one line and many, of reading and analysis,
of one rank and eight, and of `shardlens analyze` and Holistic Trace Analysis.

    trace_bench.py [--bin build/release/bin] [--sizes 1,10,100,300,1000] [--rounds 5] [--graph 300] [--ranks 8] [--hta 300] [--python PYTHON] [--work DIR]

Every run is a separate process; the programs of a row run alternately. Seconds are medians of the time that the program itself measures (with the file in
the page cache), CPU is user and system time of the process, memory its largest resident set, including mapped pages (getrusage). A ratio is the median
over rounds of the ratio within a round, because the speed of a shared machine changes between rounds. Traces come from
generate_trace.py and are kept in the work directory. The one-line copy has blanks instead of line breaks. Analysis is the CPU time of
`shardlens analyze --json` beyond that of reading. --graph SIZE also reads and analyzes a trace of a CUDA graph, as Kineto writes it and on one line, and an eager one of that size.
--ranks N also analyzes N ranks of 100 MB at once, and one alone. --hta SIZE also runs Holistic Trace Analysis on that size, once: it takes about 0.2 s per MB and
needs --python with HolisticTraceAnalysis (SHARDLENS_TEST_PYTHON).
"""
import argparse
import gzip
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ratios

HERE = Path(__file__).resolve().parent


def run(command):
    """(output, wall seconds, CPU seconds, most MiB)"""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{command} exited with {process.returncode}")
        out.seek(0)
        return out.read().decode(), wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def trace_of(work, megabytes, *flags):
    path = work / f"rank0{''.join(flags).replace('--', '.')}.{megabytes:g}.json"
    if not path.exists():
        subprocess.run([sys.executable, HERE / "generate_trace.py", "--megabytes", str(megabytes), "--out", path, *flags], check=True)
    packed = path.with_suffix(".json.gz")
    if not packed.exists():
        with open(path, "rb") as plain, gzip.open(str(packed) + ".tmp", "wb", compresslevel=6) as out:
            shutil.copyfileobj(plain, out, 1 << 20)
        os.replace(str(packed) + ".tmp", packed)
    line = path.with_suffix(".line")
    if not line.exists():
        with open(path, "rb") as lines, open(str(line) + ".tmp", "wb") as out:
            while piece := lines.read(1 << 20):
                out.write(piece.replace(b"\n", b" "))
        os.replace(str(line) + ".tmp", line)
    return path, packed, line


def cache(path):
    """Reads a file into the page cache; in pieces, because a child's largest resident set is at least its parent's."""
    with open(path, "rb") as whole:
        while whole.read(1 << 20):
            pass


def measure(options, path, packed, line):
    commands = {"read": [options.bin / "trace_read", path], "gzip": [options.bin / "trace_read", packed], "bare": [options.bin / "simdjson_pass", path],
                "line": [options.bin / "trace_read", line], "analyze": [options.bin / "shardlens", "analyze", "--json", path],
                "inflate": ["gzip", "-t", packed]}
    for file in (path, packed, line):
        cache(file)
    seconds, cpu, memory, events = {}, {}, {}, 0
    for _ in range(options.rounds):
        for name, command in commands.items():
            out, _, used, most = run(command)
            if name not in ("analyze", "inflate"):
                taken, events, *parsing = out.split()
                seconds.setdefault(name, []).append(float(taken))
            if name == "bare":
                seconds.setdefault("bare in memory", []).append(float(parsing[0]))
            cpu.setdefault(name, []).append(used)
            memory[name] = max(memory.get(name, 0), most)
    return seconds, cpu, memory, int(events)


def ratio(runs, over, under):
    return statistics.median(ratios.by_round(runs[over], runs[under]))


def row(size, path, seconds, cpu, memory, events):
    mib = path.stat().st_size / 2**20
    limit = f"{40 * events / 2**20 + 64 if size >= 1000 else 0.6 * mib:.0f}" if size >= 300 else "-"
    megabytes = path.stat().st_size / 1e6
    read, bare = (statistics.median(seconds[name]) for name in ("read", "bare"))
    parts = [ratio(seconds, "bare", "read"), ratio(cpu, "bare", "read"), ratio(seconds, "bare in memory", "read"), ratio(seconds, "gzip", "read")]
    cells = [f"{megabytes:.1f}", f"{events:,}", f"{read:.3f}", f"{bare:.3f}", *(f"{value:.2f}" for value in parts), f"{megabytes / read:.0f}",
             f"{ratio(cpu, 'line', 'read'):.2f}", f"{ratio(cpu, 'analyze', 'read') - 1:.2f}", f"{memory['read']:.0f}", limit,
             *(f"{memory[name]:.0f}" for name in ("gzip", "bare", "analyze"))]
    print(f"| {' | '.join(cells)} |", flush=True)
    for label, over, under in (("read-over-bare", "read", "bare"), ("gzip-over-plain", "gzip", "read"), ("gzip-over-inflating", "gzip", "inflate"), ("one-line-over-lines", "line", "read"),
                               ("analyze-over-read", "analyze", "read")):
        ratios.report(f"traces/{size:g}MB/{label}", ratios.by_round(cpu[over], cpu[under]))


def graph(options):
    """CPU time of reading and analyzing a trace of a CUDA graph, in parts of that of an eager one."""
    eager, captured = trace_of(options.work, options.graph), trace_of(options.work, options.graph, "--graph")
    files = {"eager": eager[0], "eager on one line": eager[2], "graph": captured[0], "graph on one line": captured[2]}
    cpu = {}
    for _ in range(options.rounds):
        for name, path in files.items():
            cache(path)
            for what, command in (("read", [options.bin / "trace_read"]), ("analyze", [options.bin / "shardlens", "analyze", "--json"])):
                cpu.setdefault((name, what), []).append(run([*command, path])[2])
    print(f"\n| {options.graph:g} MB | read, CPU s | analyze, CPU s | read / eager | analyze / eager (goal 1.3) |\n|---|---|---|---|---|")
    for name in files:
        parts = [ratios.by_round(cpu[name, what], cpu["eager", what]) for what in ("read", "analyze")]
        print(f"| {name} | {' | '.join(f'{statistics.median(cpu[name, what]):.3f}' for what in ('read', 'analyze'))} | "
              f"{' | '.join(f'{statistics.median(part):.2f} ({min(part):.2f} to {max(part):.2f})' for part in parts)} |", flush=True)
    ratios.report("traces/graph-over-eager", ratios.by_round(cpu["graph", "analyze"], cpu["eager", "analyze"]))


def ranks(options):
    folder = options.work / f"ranks.{options.ranks}"
    folder.mkdir(exist_ok=True)
    for rank in range(options.ranks):
        path = folder / f"rank{rank}.json"
        if not path.exists():
            subprocess.run([sys.executable, HERE / "generate_trace.py", "--megabytes", "100", "--rank", str(rank), "--out", path], check=True)
        cache(path)
    command = [options.bin / "shardlens", "analyze", "--json"]
    found = {"1": [], str(options.ranks): []}
    for _ in range(options.rounds):
        found["1"].append(run([*command, folder / "rank0.json"])[1:])
        found[str(options.ranks)].append(run([*command, folder])[1:])
    print(f"\n| ranks of 100 MB, on {os.cpu_count()} cores | s | CPU s | MB per second | MB per CPU second | MiB at most |\n|---|---|---|---|---|---|")
    for name, runs in found.items():
        wall, cpu, most = (statistics.median(column) for column in zip(*runs))
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {100 * int(name) / wall:.0f} | {100 * int(name) / cpu:.0f} | {most:.0f} |", flush=True)
    each = [cpu / options.ranks for _, cpu, _ in found[str(options.ranks)]]
    ratios.report(f"traces/{options.ranks}-ranks-over-one", ratios.by_round(each, [cpu for _, cpu, _ in found["1"]]))


def hta(options, path):
    program = ("import sys, contextlib, io\n"
               "with contextlib.redirect_stdout(io.StringIO()):\n"
               "    from hta.trace_analysis import TraceAnalysis\n"
               "    a = TraceAnalysis(trace_dir=sys.argv[1])\n"
               "    a.get_comm_comp_overlap(visualize=False); a.get_temporal_breakdown(visualize=False); a.get_idle_time_breakdown(ranks=[0], visualize=False)\n")
    with tempfile.TemporaryDirectory(dir=options.work) as directory:
        # HTA reads every JSON file of a directory as a trace, so the trace gets its own directory.
        os.link(path, Path(directory) / "rank0.json")
        ours = [run([options.bin / "shardlens", "analyze", path, "--json"])[1:] for _ in range(3)]
        _, wall, cpu, most = run([options.python, "-c", program, directory])
    wall_ours, _, most_ours = sorted(ours)[1]
    print(f"\n| {path.stat().st_size / 1e6:.0f} MB, whole process | s | MiB at most |\n|---|---|---|")
    print(f"| `shardlens analyze --json` | {wall_ours:.2f} | {most_ours:.0f} |\n| HTA: parse, overlap, temporal and idle breakdown | {wall:.2f} | {most:.0f} |")
    print(f"\nHTA / ours: {wall / wall_ours:.0f} in time (target 50), {most / most_ours:.1f} in memory.")
    ratios.report("traces/HTA-time", [seconds / wall for seconds, _, _ in ours])
    ratios.report("traces/HTA-memory", [memory / most for _, _, memory in ours])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=HERE.parent / "build/release/bin")
    parser.add_argument("--sizes", default="1,10,100,300,1000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--graph", type=float)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--hta", type=float)
    parser.add_argument("--python", default=os.environ.get("SHARDLENS_TEST_PYTHON", sys.executable))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shardlens-trace-bench")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    print("| MB | events | read (s) | bare simdjson (s) | bare / read (goal 0.6) | the same of CPU time | bare without loading / read | gzip / plain (limit 1.3) | MB/s | one line / lines | analysis / read (goal 0.3) | MiB at most | limit | "
          "gzip MiB | bare MiB | analyze MiB |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for size in options.sizes.split(","):
        files = trace_of(options.work, float(size))
        row(float(size), files[0], *measure(options, *files))
    if options.graph:
        graph(options)
    if options.ranks:
        ranks(options)
    if options.hta:
        hta(options, trace_of(options.work, options.hta)[0])


if __name__ == "__main__":
    main()
