#!/usr/bin/env python3
"""Checks what people see of the command line: wrong ones and what each says, all help in terminals of 80 and 120 columns, and its examples.

    check_command_line.py --shardlens PROGRAM            exit 1 if one differs
    check_command_line.py --shardlens PROGRAM --print    also prints what the program says

Help fits the terminal, has examples and nothing of CLI11's notation, and `help SUBCOMMAND` prints the same. Examples are command lines that
the program takes: none of them has exit code 2.
"""
import argparse
import fcntl
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL, RUN = "tests/data/llama-tiny", "traces/llama-emulated8"
SIMULATE = f"simulate --model {MODEL} --hardware 8xH100"

# A command line, its exit code, and a part of what it says on stderr. OUT is a new folder.
WRONG = [
    ("", 2, "expected a subcommand"),
    ("--hlep", 2, "unknown flag '--hlep'; did you mean '--help'?"),
    ("--verison", 2, "unknown flag '--verison'; did you mean '--version'?"),
    ("--version now", 2, "--version: expected nothing or --json, found 'now'"),
    ("-x", 2, "unknown flag '-x'"),
    ("help nothing", 2, "unknown subcommand 'nothing'"),
    ("help plan more", 2, "expected one subcommand, found 'more' too"),
    ("Plan", 2, "unknown subcommand 'Plan'; did you mean 'plan'?"),
    (f"analyse {RUN}", 2, "unknown subcommand 'analyse'; did you mean 'analyze'?"),
    ("plan", 2, "--model is required: a directory with config.json"),
    (f"plan --modle {MODEL}", 2, "unknown flag '--modle'; did you mean '--model'?"),
    ("plan --model", 2, "--model needs a value\n"),
    ("plan --model nowhere", 3, "nowhere: does not exist; expected a directory with config.json"),
    (f"plan --model {MODEL} --strategy fully_shard", 2, "unknown strategy 'fully_shard'; expected one of 'full_shard'"),
    (f"plan --model {MODEL} --world-size 0", 2, "--world-size 0: expected at least 1"),
    (f"plan --model {MODEL} --world-size two", 2, "--world-size two: expected a whole number"),
    (f"plan --model {MODEL} --world-size 99999999999999999999", 2, "expected a whole number from -2^63 to 2^63 - 1"),
    (f"plan --model {MODEL} --mesh 2x", 2, "--mesh '2x': expected RxS"),
    (f"plan --model {MODEL} --mesh shard=2,tensr=2", 2, "found 'tensr'; did you mean 'tensor'?"),
    (f"plan --model {MODEL} --plan {MODEL}/config.json", 3, "config.json#/architectures: unknown key 'architectures'"),
    (f"plan --from-trace {RUN} --strategy full_shard", 2, "--strategy and --from-trace cannot be given together"),
    (f"capture --model {MODEL} --out OUT", 2, "--tokens is required"),
    (f"capture --model {MODEL} --out OUT --precision fp8", 2, "--precision fp8: expected fp32, bf16 or fp16"),
    (f"capture --model {MODEL} --out OUT --device gpu", 2, "--device gpu: expected cpu or cuda"),
    (f"capture --model {MODEL} --out OUT --backend mpi", 2, "--backend mpi: expected gloo, nccl or emulated"),
    ("analyze", 2, "expected paths: capture directories, traces"),
    ("analyze nowhere", 3, "nowhere: no such file"),
    ("analyze README.md", 3, "README.md at byte 0: not the JSON of a trace"),
    (f"analyze {RUN} --by units", 2, "--by: expected unit, collective, step, rank, stream, span, order or group, found 'units'"),
    (f"analyze {RUN} --steps 5", 2, "--steps: expected A:B with A < B"),
    (f"analyze {RUN} --steps 90:95", 3, "no step in 90:95; the trace has 2 to 4"),
    (f"analyze {RUN} --explain layers.0", 2, "no unit 'layers.0' in the trace; did you mean 'model.layers.0'?"),
    (f"analyze {RUN} --csv --json", 2, "--json and --csv cannot be given together"),
    (f"analyze {RUN} --compat HTA", 2, "--compat: expected hta, found 'HTA'"),
    (f"analyze {RUN} --comm-regex (", 2, "'(' is not a regular expression: missing )"),
    (f"analyze {RUN} --top -1", 2, "--top: expected a number of rows from 1, found -1"),
    (f"analyze {RUN} --top", 2, "--top needs a value: a whole number"),
    (f"analyze {RUN} --device 3", 3, "--device: the trace has no kernels"),
    (f"merge {RUN}", 3, "the directory contains no summary"),
    (f"merge {RUN} --critical-path", 2, "--critical-path: not in summaries"),
    (f"compare {RUN}", 2, "expected b: the run, or runs, to compare it with"),
    (f"compare {RUN} {RUN} more", 2, "unexpected 'more'"),
    (f"check --baseline {RUN}", 2, "--candidate is required"),
    (f"check --baseline {RUN} --candidate {RUN} --metric speed", 2, "--metric speed: expected step_time, exposed_comm, peak_memory or structure"),
    (f"check --baseline {RUN} --candidate {RUN} --metric step_time:3", 2, "expected a limit such as 3% or 200us"),
    (f"check --baseline {RUN} --candidate {RUN} --inconclusive-is ok", 2, "--inconclusive-is: expected pass or fail, found 'ok'"),
    (f"report {RUN}", 2, "--out is required"),
    (f"report {RUN} --out /nowhere/r.html", 4, "cannot write /nowhere/r.html: No such file or directory"),
    (f"report {RUN} --out traces", 4, "cannot write traces: Is a directory"),
    (f"simulate --model {MODEL}", 2, "--hardware is required"),
    (f"simulate --model {MODEL} --hardware 8xH10O", 3, "'8xH10O' is neither a spec nor a file"),
    (f"simulate --model {MODEL} --hardware h100", 3, "did you mean '8xH100'?"),
    (f"{SIMULATE} --fits --memory-limit 80", 2, "--memory-limit: '80' has no unit; expected a size such as 80GiB or 512MiB (80B: bytes)"),
    (f"{SIMULATE} --fits --memory-limit 80GX", 2, "--memory-limit: '80GX': expected a size such as 80GiB"),
    (f"{SIMULATE} --stack torch", 3, "--stack: unknown stack 'torch'; known: "),
    (f"{SIMULATE} --transport rings", 2, "--transport rings: expected 'ring', 'symmetric', 'copy_engine'; did you mean 'ring'?"),
    (f"{SIMULATE} --compile blocks", 2, "--compile blocks: expected none, block or model"),
    (f"{SIMULATE} --batch 0", 2, "--batch 0: expected at least 1"),
    (f"{SIMULATE} --slow-rank 1", 2, "--slow-rank '1': expected RANK:FACTOR, such as 3:1.2"),
    (f"{SIMULATE} --power-limit 5000", 3, "--power-limit: 5000 W: expected 140 to 700 W"),
    (f"simulate --workload {RUN} --model {MODEL}", 2, "--model with --workload is for another tensor, context or expert than the run's"),
    (f"advise {RUN} --memory-limit 80", 2, "'80' has no unit"),
    (f"advise {RUN} --top many", 2, "--top many: expected a whole number"),
    ("calibrate", 2, "--out is required"),
    (f"search --model {MODEL} --hardware 8xH100", 2, "--memory-limit is required"),
    (f"search --model {MODEL} --hardware 8xH100 --memory-limit 70", 2, "'70' has no unit"),
    (f"search --model {MODEL} --hardware 8xH100 --memory-limit 70GiB --precisions fp8", 2, "--precisions fp8: expected fp32, bf16 or fp16"),
    ("validate --runs nowhere.csv", 3, "nowhere.csv: no such file"),
    ("checkpoint", 2, "expected action: show: what was saved"),
    ("checkpoint list out", 2, "expected show, verify, merge or convert, found 'list'"),
    ("checkpoint show nowhere", 3, "nowhere: has no checkpoint"),
    (f"checkpoint show {RUN} --world-size 2", 2, "--world-size is a flag of checkpoint convert"),
    (f"convert {RUN}", 2, "--out is required"),
    (f"convert {RUN} --out OUT/x.json --categories kernels", 3, "has no event of category 'kernels'; it has communication, cpu_op"),
    (f"convert {RUN} --out OUT/x.json --ranks 9", 3, "has no trace of rank 9"),
    (f"convert {RUN} --out OUT/x.json --compat hta", 2, "--compat: expected tensorboard, found 'hta'"),
    ("doctor --need gpus", 2, "--need gpus: expected build, capture, gpu or app"),
    ("docs plann", 2, "there is no page 'plann'; did you mean 'plan'?"),
    ("docs plan nothing", 2, "no heading of plan contains 'nothing'"),
    ("completion csh", 2, "expected bash, zsh, fish or man, found 'csh'"),
    ("completion man", 2, "man needs --out DIR"),
]
# Of CLI11, or of types.
NOTATION = ("{false}", "{true}", "{0}", "Excludes", "Needs:", "REQUIRED", ":FILE", ":PATH", ":INT", " ...")


def wrong_lines(program, shows):
    with tempfile.TemporaryDirectory() as folder:
        for line, code, words in WRONG:
            done = subprocess.run([program, *line.replace("OUT", folder).split()], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
            if shows:
                print(f"$ shardlens {line}\n[{done.returncode}] {done.stderr.rstrip()[:600]}")
            if done.returncode != code or words not in done.stderr or done.stdout or not done.stderr.startswith("shardlens: "):
                yield f"{line}: exit code {done.returncode}, expected {code} and '{words.rstrip()}': {done.stdout[:200]}{done.stderr[:400]}"


def has_terminals():
    """Whether this machine makes pseudo-terminals: some containers have no /dev/pts."""
    try:
        for end in pty.openpty():
            os.close(end)
    except OSError:
        return False
    return True


def in_terminal(arguments, columns):
    """Exit code and output of a program whose standard streams are a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    # What was written last can be lost when the last descriptor of this side is closed, so it stays open until a mark has come through.
    mark = b"\0end of the output\0"
    ended = threading.Thread(target=lambda: (process.wait(), os.write(theirs, mark)))
    ended.start()
    out = b""
    while not out.endswith(mark):
        out += os.read(ours, 65536)
    ended.join()
    os.close(theirs)
    os.close(ours)
    return process.returncode, out.removesuffix(mark).decode().replace("\r\n", "\n")


def help_faults(program, shows):
    names = re.findall(r"^  ([a-z]+)  ", in_terminal([program, "--help"], 200)[1], re.M)
    if len(names) < 15:
        yield f"--help lists {len(names)} subcommands"
    for columns in (80, 120):
        for name in ["", *names]:
            _, text = in_terminal([program, *filter(None, [name]), "--help"], columns)
            if shows:
                print(text)
            where = f"{name or 'shardlens'} --help in {columns} columns"
            yield from (f"{where}: a line of {len(line)}: {line}" for line in text.splitlines() if len(line) > columns or line != line.rstrip())
            yield from (f"{where}: has '{part}'" for part in NOTATION if part in text.split("Arguments:" if "Arguments:" in text else "Flags:", 1)[-1])
            if "\nExamples:\n" not in text:
                yield f"{where}: no examples"
            if (0, text) != in_terminal([program, "help", *filter(None, [name])], columns):
                yield f"{where}: help {name} prints something else"
    for name in names:
        text = in_terminal([program, name, "--help"], 120)[1]
        yield from examples_of(program, re.findall(r"^  shardlens (.*)$", text.split("\nExamples:\n")[-1], re.M))


def examples_of(program, lines):
    for line in lines:
        with tempfile.TemporaryDirectory() as folder:  # without the files that the examples name
            done = subprocess.run([program, *line.split()], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 2:
            yield f"the example '{line}' is no command line: {done.stderr}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shardlens", required=True)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    program = os.path.abspath(options.shardlens)
    wrong = wrong_lines(program, options.print)
    helps = "all help and its examples"
    if has_terminals():
        wrong = [*wrong, *help_faults(program, options.print)]
    else:
        wrong, helps = [*wrong], "(without terminals here, no help)"
    print("\n".join(wrong) or f"{len(WRONG)} wrong command lines, and {helps}, are as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
