#!/usr/bin/env python3
"""Gives the programs one input of each bad kind, and checks how each is answered.

    check_inputs.py --bin DIR                  every kind
    check_inputs.py --bin DIR --quick          those that start no workers and take no ten seconds, as CTest does
    check_inputs.py --bin DIR --only plan      those whose name matches
    check_inputs.py --bin DIR --mutate N       also N documents of each JSON format in which one value is removed or replaced
    check_inputs.py --bin DIR --write FILE     replaces the table of inputs in bench/RELIABILITY.md

Expected of each: exit code 2 or 3 and a message that names the file or flag (or exit code 0 and the message as a warning, where the rest is usable),
within 20 s and 2 GiB of memory; what is printed with --json is JSON. No message may have more than 4100 characters, characters that steer a terminal, or the text of a library's
exception. Kinds that need shardlens-worker are skipped where it is missing. Exit 1 if an expectation fails.
"""
import argparse
import concurrent.futures
import gzip
import json
import os
import pathlib
import random
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

import raw_text
import reliability_table

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tests/data"
MODEL, TOKENS, RUN, RECORDED = DATA / "llama-tiny", DATA / "tokens.u16.bin", ROOT / "traces/llama-emulated8", DATA / "recorded_run"
SPEC, STACKS, PUBLISHED = ROOT / "sim/hardware/specs/8xH100.json", ROOT / "sim/hardware/stacks.json", DATA / "training_runs.csv"
SECONDS, MEMORY = 20, 2 << 30
RAW = ("internal error", "json.exception", "bad_alloc", "terminate called", "filesystem error", "basic_string", "vector::", "std::", "map::at", "error: stoi")

KINDS = []


def kind(group, words, pattern, codes=(2, 3), worker=False, slow=False):
    """`function(folder)` writes the input and returns the arguments of the command. `slow`: it takes ten seconds or more."""
    def add(function):
        KINDS.append((group, words, pattern, codes, worker, slow, function))
        return function
    return add


class Gone(list):
    """Arguments of a command that starts in a directory that was removed."""


def written(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def changed(source, *keys, to=None, remove=False):
    """A JSON document with one value replaced or removed, as text."""
    document = json.loads(source.read_text(encoding="utf-8") if isinstance(source, pathlib.Path) else json.dumps(source))
    at = document
    for key in keys[:-1]:
        at = at[key]
    if remove:
        del at[keys[-1]]
    else:
        at[keys[-1]] = to
    return json.dumps(document)


def cases(group, arguments, name, rows, codes=(2, 3), worker=False):
    """Rows of (words, content, pattern): the content in a file of this name, with `arguments(path)`."""
    for words, content, pattern in rows:
        def function(folder, content=content):
            return arguments(written(folder, name, content() if callable(content) else content))
        kind(group, words, pattern, codes, worker)(function)


# Traces.

EVENT = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, "args": {"stream": 7}}'
TRACE = '{"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": [' + EVENT + "]}"


def trace_with(old, new):
    assert old in TRACE
    return TRACE.replace(old, new, 1)


def analyze(path):
    return ["analyze", path]


def truncated(content):
    return content[:len(content) // 2]


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 255]) + content[at + 1:]


GOOD_GZIP = gzip.compress(TRACE.encode() * 1, mtime=0)
BIG_GZIP = (RUN / "rank0.pt.trace.json.gz").read_bytes()
ZSTD = (RECORDED / "rank0.pt.trace.json.zst").read_bytes()

cases("trace", analyze, "t.json", [
    ("empty file", "", "t.json"),
    ("no JSON", "hello", "t.json.*byte 0"),
    ("cut off", truncated(TRACE), "t.json at byte"),
    ("traceEvents is missing", "{}", "traceEvents"),
    ("traceEvents is no array", '{"traceEvents": 7}', "traceEvents"),
    ("an array nested 100 000 times", '{"traceEvents": ' + "[" * 100_000, "t.json"),
    ("arguments nested 100 000 times", trace_with('{"stream": 7}', '{"a":' * 100_000), "t.json"),
    ("UTF-16", TRACE.encode("utf-16"), "t.json"),
    ("bytes that are not UTF-8", TRACE.replace('"k"', '"\udcff"').encode(errors="surrogateescape"), "UTF-8"),
    ("a control character in a name", trace_with('"k"', '"\x01"'), "control character"),
    ("text after the end", TRACE + "x", "t.json at byte"),
    ("two documents", TRACE + TRACE, "t.json at byte"),
])
cases("trace", analyze, "t.json", [
    ("a time of 1e300", trace_with("1.5", "1e300"), "left out|time"),
    ("a time that is text", trace_with("1.5", '"x"'), "left out|time"),
    ("a negative duration", trace_with('"dur": 2', '"dur": -2'), "left out|duration|negative"),
    ("an event that is a number", trace_with(EVENT, EVENT + ", 7"), "left out|object"),
    ("an event without a time", trace_with('"ts": 1.5, ', ""), "left out|ts"),
    ("an unknown phase", trace_with('"ph": "X"', '"ph": "?"'), "left out|phase"),
    ("a rank of 10^30", trace_with('"rank": 0', '"rank": 1' + "0" * 30), "expected a whole number"),
    ("a rank of 2^64 - 1", trace_with('"rank": 0', f'"rank": {2 ** 64 - 1}'), "expected a whole number"),
    ("a rank of 2^63 - 1", trace_with('"rank": 0', f'"rank": {2 ** 63 - 1}'), "expected a whole number"),
    ("a negative rank", trace_with('"rank": 0', '"rank": -1'), "expected a whole number"),
    ("a world size of 2^63", trace_with('"world_size": 1', f'"world_size": {2 ** 63}'), "expected a whole number"),
    ("a stream and a process of 2^64", trace_with('"pid": 0', f'"pid": {2 ** 64}').replace('"stream": 7', f'"stream": {2 ** 64}'), ""),
    ("NaN", trace_with('"stream": 7', '"stream": NaN'), "NaN"),
], codes=(0, 2, 3))
cases("trace, compressed", analyze, "t.json.gz", [
    ("gzip, cut off", truncated(BIG_GZIP), "t.json.gz"),
    ("gzip, one bit of the checksum", GOOD_GZIP[:-6] + flipped(GOOD_GZIP[-6:], 0), "t.json.gz"),
    ("gzip, one byte in the middle", flipped(BIG_GZIP, len(BIG_GZIP) // 2), "t.json.gz"),
    ("gzip header only", GOOD_GZIP[:10], "t.json.gz"),
    ("gzip of 2 GiB of spaces (2 MiB)", lambda: gzip.compress(b" " * (1 << 26), 9, mtime=0) * 32, "t.json.gz"),
    ("gzip inside of gzip", gzip.compress(GOOD_GZIP), "t.json.gz"),
])
cases("trace, compressed", analyze, "t.json.zst", [
    ("zstd, cut off", truncated(ZSTD), "t.json.zst"),
    ("zstd, one byte in the middle", flipped(ZSTD, len(ZSTD) // 2), "t.json.zst"),
    ("zstd with a window of 2 GiB", b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x01\x00\x00", "t.json.zst"),
    ("zstd magic only", ZSTD[:4], "t.json.zst"),
])


@kind("files", "no such file", "nowhere")
def _(folder):
    return ["analyze", folder / "nowhere"]


@kind("files", "an empty directory", "trace")
def _(folder):
    return ["analyze", folder]


@kind("files", "a directory in the place of a trace", "contains no trace")
def _(folder):
    (folder / "d/rank0.pt.trace.json").mkdir(parents=True)
    return ["analyze", folder / "d"]


@kind("files", "two traces of one rank", "rank 0|same rank|two")
def _(folder):
    written(folder, "d/a.json", TRACE)
    written(folder, "d/b.json", TRACE)
    return ["analyze", folder / "d/a.json", folder / "d/b.json"]


@kind("files", "a pipe that nobody writes to", "pipe")
def _(folder):
    os.mkfifo(folder / "t.json")
    return ["analyze", folder / "t.json"]


@kind("files", "/dev/zero as a config", "/dev/zero")
def _(folder):
    return ["plan", "--model", "/dev/zero"]


@kind("files", "/dev/null as a trace", "/dev/null")
def _(folder):
    return ["analyze", "/dev/null"]


@kind("files", "a symlink that leads to itself", "loop|symbolic")
def _(folder):
    (folder / "loop.json").symlink_to("loop.json")
    return ["analyze", folder / "loop.json"]


@kind("files", "a name of 5000 characters", "does not exist|too long")
def _(folder):
    return ["plan", "--model", folder / ("n" * 5000)]


@kind("files", "a name with escape sequences and right-to-left marks", r"\\x1b\[31m")
def _(folder):
    return ["analyze", folder / "\x1b[31m\u202egpj\x9b2J"]


@kind("files", "a file of 65 MiB as a plan", "64 MiB")
def _(folder):
    with open(folder / "p.json", "wb") as file:
        file.truncate(65 << 20)
    return ["plan", "--model", MODEL, "--plan", folder / "p.json"]


# Plans, models.

PLAN = json.loads((RUN / "plan.json").read_text(encoding="utf-8"))


def plan(path):
    return ["plan", "--model", MODEL, "--plan", path]


cases("plan", plan, "p.json", [
    ("empty file", "", "p.json"),
    ("no JSON", "units:", "p.json.*byte"),
    ("a byte-order mark and nothing", b"\xef\xbb\xbf", "p.json"),
    ("nested 1000 times", "[" * 1000 + "]" * 1000, "p.json"),
    ("a key twice", '{"version": 1, "version": 1}', "version"),
    ("an unknown key", changed(PLAN, "no_such_key", to=1), "no_such_key"),
    ("another version", changed(PLAN, "version", to=99), "version"),
    ("no version", "{}", "version"),
    ("text for a number", changed(PLAN, "forward_prefetch", to="many"), "forward_prefetch"),
    ("a negative number", changed(PLAN, "forward_prefetch", to=-1), "forward_prefetch"),
    ("2^70", changed(PLAN, "forward_prefetch", to=2 ** 70), "forward_prefetch"),
    ("a dialect that does not exist", changed(PLAN, "dialect", to="fsdp3"), "dialect"),
    ("a glob that matches nothing", '{"version": 1, "ignored_modules": ["nothing.*"]}', "nothing"),
    ("text after the end", json.dumps(PLAN) + "}", "p.json.*byte"),
    ("200 000 units", json.dumps({"version": 1, "units": [{"modules": "model.layers.0"}] * 200_000}), "at most 16384"),
])


def given_plan(path):
    return ["analyze", RUN, "--model", MODEL, "--plan", path]


cases("plan of analyze", given_plan, "p.json", [
    ("empty file", "", "p.json"),
    ("a mesh of other ranks than the traces", changed(PLAN, "mesh", to={"replicate": 3, "shard": 5}), "world size is 8"),
    ("a glob that matches nothing", '{"version": 1, "ignored_modules": ["nothing.*"]}', "nothing"),
])


def model(path):
    return ["plan", "--model", path.parent]


CONFIG = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
cases("config.json", model, "config.json", [
    ("empty object", "{}", "config.json"),
    ("an unknown model_type", changed(CONFIG, "model_type", to="nothing"), "model_type"),
    ("hidden_size 0", changed(CONFIG, "hidden_size", to=0), "hidden_size"),
    ("hidden_size -64", changed(CONFIG, "hidden_size", to=-64), "hidden_size"),
    ("hidden_size 2^62", changed(CONFIG, "hidden_size", to=2 ** 62), "hidden_size|config.json"),
    ("hidden_size is text", changed(CONFIG, "hidden_size", to="64"), "hidden_size"),
    ("10^9 layers", changed(CONFIG, "num_hidden_layers", to=10 ** 9), "num_hidden_layers"),
    ("heads that do not divide", changed(CONFIG, "num_key_value_heads", to=3), "num_key_value_heads|heads"),
    ("an array", "[]", "config.json"),
    ("an unknown activation", changed(CONFIG, "hidden_act", to="\x1b[31m"), "hidden_act"),
])
FILE = json.loads((RECORDED / "model.json").read_text(encoding="utf-8"))
cases("model.json", lambda path: ["simulate", "--hardware", "8xH100", "--model", path], "model.json", [
    ("empty object", "{}", "model.json"),
    ("an array", "[]", "model.json"),
    ("the first key is missing", changed(FILE, next(iter(FILE)), remove=True), "model.json"),
    ("cut off", truncated(json.dumps(FILE)), "model.json"),
])


# Checkpoints and tokens, which only the workers read.

def train(folder, *more, tokens=TOKENS, model_folder=None):
    return ["capture", "--model", model_folder or folder / "m", "--tokens", tokens, "--out", folder / "out", "--steps", "1", "--nproc", "1", "--seq", "16", *more]


def header(entries, extra=b""):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + extra


TENSORS = (MODEL / "model.safetensors").read_bytes()
SIZE = struct.unpack("<Q", TENSORS[:8])[0]
ENTRIES = json.loads(TENSORS[8:8 + SIZE])
FIRST = next(name for name in ENTRIES if name != "__metadata__")


def with_first(dtype, shape, offsets):
    return {**ENTRIES, FIRST: {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def checkpoint(entries):
    return header(entries, TENSORS[8 + SIZE:])


for each, content, expected in [
        ("cut off", truncated(TENSORS), "model.safetensors"),
        ("empty file", b"", "model.safetensors"),
        ("a header of 2^60 bytes", struct.pack("<Q", 1 << 60) + b"{}", "model.safetensors"),
        ("a header that is no JSON", struct.pack("<Q", 4) + b"abcd", "model.safetensors"),
        ("a tensor beyond the end", checkpoint(with_first("F32", [1], [1 << 50, (1 << 50) + 4])), "model.safetensors"),
        ("a tensor of negative size", checkpoint(with_first("F32", [1], [8, 4])), "model.safetensors"),
        ("a shape whose product overflows", checkpoint(with_first("F32", [1 << 40, 1 << 40], [0, 4])), "model.safetensors"),
        ("an unknown dtype", checkpoint(with_first("F7", [1], [0, 4])), "model.safetensors"),
        ("a tensor is missing", checkpoint({name: entry for name, entry in ENTRIES.items() if name != FIRST}), "model.safetensors|no tensor"),
]:
    def function(folder, content=content):
        written(folder, "m/config.json", json.dumps(CONFIG))
        written(folder, "m/model.safetensors", content)
        return train(folder)
    kind("safetensors", each, expected, (3,), worker=True)(function)
for each, entry, expected in [("a shard that leads out of the folder", "../model.safetensors", "not the name of a file"),
                              ("an absolute shard", "/etc/passwd", "not the name of a file"),
                              ("a shard that is missing", "model-1.safetensors", "is missing")]:
    def function(folder, entry=entry):
        written(folder, "m/config.json", json.dumps(CONFIG))
        written(folder, "m/model.safetensors.index.json", json.dumps({"weight_map": {FIRST: entry}}))
        return train(folder)
    kind("safetensors index", each, expected, (3,), worker=True)(function)
for each, name, content, expected in [("empty file", "t.bin", b"", "t.bin"), ("an odd number of bytes", "t.bin", b"abc" * 999, "t.bin"),
                                      ("a token beyond the vocabulary", "t.u32.bin", b"\xff" * 4000, "t.u32.bin.*vocabulary"),
                                      ("fewer tokens than a sample", "t.bin", b"\0\0" * 5, "t.bin")]:
    def function(folder, name=name, content=content):
        return train(folder, tokens=written(folder, name, content), model_folder=MODEL)
    kind("tokens", each, expected, (3,), worker=True)(function)


# Checkpoints of runs.

WHOLE = json.loads((ROOT / "tests/data/fuzz/checkpoint/one.json").read_text(encoding="utf-8"))
PART = header({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}, b"\0" * 16)


def saved(*keys, **how):
    return changed(WHOLE, *keys, **how)


def verify(path):
    written(path.parent, "r0.safetensors", PART)
    return ["checkpoint", "verify", path.parent]


cases("checkpoint", verify, "s/checkpoint.json", [
    ("empty file", b"", "checkpoint.json"),
    ("an array", "[]", "checkpoint.json"),
    ("cut off", truncated(json.dumps(WHOLE)), "checkpoint.json"),
    ("another version", saved("shardlens_checkpoint", to=2), "shardlens_checkpoint"),
    ("a negative step", saved("step", to=-1), "step"),
    ("the files are missing", saved("files", remove=True), "files"),
    ("a file that leads out of the folder", saved("files", 0, "name", to="../r0.safetensors"), "not the name of a file"),
    ("a file of another size", saved("files", 0, "bytes", to=88), "1 of 1 pieces are damaged"),
    ("a file that is missing", saved("files", 0, "name", to="r1.safetensors"), "1 of 1 pieces are damaged"),
    ("a piece outside of its tensor", saved("tensors", 0, "pieces", 0, "offset", to=[1, 0]), "not inside"),
    ("a piece of 2^60 elements", saved("tensors", 0, "shape", to=[1 << 30, 1 << 30]), "w"),
    ("a wrong checksum", saved("tensors", 0, "pieces", 0, "crc32", to="00000000"), "1 of 1 pieces are damaged"),
    ("another dtype", saved("tensors", 0, "dtype", to="I32"), "1 of 1 pieces are damaged"),
], codes=(3,))
kind("checkpoint", "a directory without one", "has no checkpoint", (3,))(lambda folder: ["checkpoint", "show", folder])
kind("checkpoint", "merge without --out", "--out", (2,))(lambda folder: ["checkpoint", "merge", folder])
kind("checkpoint", "resume from nothing", "has no checkpoint", (3,))(
    lambda folder: ["capture", "--model", MODEL, "--tokens", TOKENS, "--out", folder / "o", "--resume", folder])
kind("checkpoint", "resume from the last step", "--steps 2.*at step 2 already", (2,))(
    lambda folder: ["capture", "--model", MODEL, "--tokens", TOKENS, "--out", folder / "o", "--steps", "2", "--resume",
                    written(folder, "s/checkpoint.json", json.dumps(WHOLE)).parent])


# Hardware, calibrations, stacks, tables.

def on_spec(path):
    return ["simulate", "--model", MODEL, "--hardware", path]


HARDWARE = json.loads(SPEC.read_text(encoding="utf-8"))


def spec(*keys, **how):
    return changed(HARDWARE, *keys, **how)


cases("hardware", on_spec, "h.json", [
    ("empty object", "{}", "h.json"),
    ("no GPUs", spec("gpus", to=0), "gpus"),
    ("10^12 GPUs", spec("gpus", to=10 ** 12), "gpus"),
    ("a bandwidth of 0", spec("gpu", "memory_gbps", "value", to=0), "memory_gbps"),
    ("a negative bandwidth", spec("gpu", "memory_gbps", "value", to=-1), "memory_gbps"),
    ("a bandwidth that is text", spec("gpu", "memory_gbps", "value", to="fast"), "memory_gbps"),
    ("a constant without a source", spec("gpu", "memory_gbps", to={"value": 3350}), "source"),
    ("a constant is missing", spec("gpu", "memory_gbps", remove=True), "memory_gbps"),
])


def linked_spec(gpus, switches):
    """Half of the GPUs are on each end of a row of switches."""
    pairs = [(f"switch{i}", f"switch{i + 1}") for i in range(switches)] + [(f"gpu{i}", f"switch{i % 2 * switches}") for i in range(gpus)]
    fabric = {key: value for key, value in HARDWARE["fabric"].items() if key != "ring_gbps"}
    fabric["links"] = [{"a": a, "b": b, "gbps": 100, "source": "-"} for a, b in pairs]
    return json.dumps({**HARDWARE, "gpus": gpus, "fabric": fabric})


cases("hardware", on_spec, "h.json", [("100 008 links", lambda: linked_spec(8, 100000), "at most 100000 links")])
cases("hardware", on_spec, "h.json", [("4096 GPUs with 20 000 links between them", lambda: linked_spec(4096, 20000), "")], codes=(0,))
kind("hardware", "an unknown name", "did you mean")(lambda folder: on_spec("8xH10O"))
kind("hardware", "ab:x:y", "ab:")(lambda folder: ["capture", "--model", MODEL, "--tokens", TOKENS, "--out", folder / "o", "--backend", "emulated",
                                               "--world-size", "2", "--hardware", "ab:x:y"])
cases("calibration", lambda path: ["simulate", "--model", MODEL, "--calibration", path], "c.json", [
    ("empty object", "{}", "c.json"), ("another version", '{"version": 99}', "version"), ("no JSON", "\0", "c.json"),
])
cases("stacks", lambda path: ["validate", "--stacks", path, "--runs", PUBLISHED], "s.json", [
    ("empty object", "{}", "s.json"), ("stacks is no array", '{"version": 1, "stacks": 7}', "stacks"),
])
TABLE = PUBLISHED.read_text(encoding="utf-8").splitlines()
cases("CSV", lambda path: ["validate", "--runs", path], "r.csv", [
    ("empty file", "", "r.csv"),
    ("a column is missing", "\n".join([TABLE[0].replace("hidden,", ""), TABLE[1]]), "hidden"),
    ("text for a number", TABLE[0] + "\n" + TABLE[1].replace(",7168,", ",wide,"), "wide|hidden"),
    ("nan for a number", TABLE[0] + "\n" + TABLE[1].replace(",7168,", ",nan,"), "nan|hidden"),
    ("a quote that does not end", TABLE[0] + '\n"' + TABLE[1], "r.csv|quote"),
    ("noise", random.Random(1).randbytes(5000), "r.csv"),
    ("a row with too few cells", TABLE[0] + "\na,b\n", "r.csv"),
])


# What Shardlens itself writes: spools, summaries, baselines, states, run.json.

def spools():
    """A spool of the recorder, made by hand: a header that is not one."""
    return b"SHARDLNS" + bytes(64)


cases("spool", analyze, "rank0.spool", [
    ("empty file", b"", "rank0.spool"), ("noise", random.Random(2).randbytes(4096), "rank0.spool"), ("another magic number", spools(), "rank0.spool"),
])
cases("summary", lambda path: ["merge", path], "rank0.summary.msgpack.gz", [
    ("empty file", b"", "rank0.summary"), ("no gzip", b"hello", "rank0.summary"), ("another format", gzip.compress(b"\x81\xa1a\x01"), "rank0.summary"),
    ("64 MiB of zeros", lambda: gzip.compress(bytes(64 << 20)), "rank0.summary"),
    ("an array of 2^32 elements", gzip.compress(b"\xdd\xff\xff\xff\xff"), "rank0.summary"),
    ("nested 100 000 times", gzip.compress(b"\x91" * 100_000), "rank0.summary"),
])
cases("baseline", lambda path: ["check", "--baseline", path, "--candidate", RUN], "b.json", [
    ("no runs", '{"shardlens_baseline": 1, "runs": []}', "no run"), ("another version", '{"shardlens_baseline": 9}', "version 9"),
    ("cut off", '{"shardlens_baseline": 1, "runs": [', "b.json"), ("runs is text", '{"shardlens_baseline": 1, "runs": "x"}', "b.json"),
])


@kind("baseline", "a run without step_time", "step_time")
def _(folder):
    saved = folder / "b.json"
    subprocess.run([BINARIES / "shardlens", "check", "--baseline", RUN, "--candidate", RUN, "--save-baseline", saved], capture_output=True, check=False)
    document = json.loads(saved.read_text(encoding="utf-8"))
    del document["runs"][0]["metrics_ns"]["step_time"]
    saved.write_text('{"shardlens_baseline"' + json.dumps(document).partition('{"shardlens_baseline"')[2], encoding="utf-8")
    return ["check", "--baseline", saved, "--candidate", RUN]


SEARCH = ["search", "--model", MODEL, "--hardware", "8xH100", "--memory-limit", "80GiB", "--state"]
cases("search state", lambda path: [*SEARCH, path], "s.jsonl", [
    ("of another search", '{"search": {}}\n', "not the state of this search"), ("noise", random.Random(3).randbytes(999), "not the state of this search"),
])


@kind("search state", "a line that is no result", "no result of a search")
def _(folder):
    state = folder / "s.jsonl"
    subprocess.run([BINARIES / "shardlens", *SEARCH, state], capture_output=True, check=False)
    with open(state, "a", encoding="utf-8") as file:
        file.write('{"plan": 7}\n')
    return [*SEARCH, state]


def run_with(name, change, command=("simulate", "--workload"), source=RUN):
    def function(folder):
        shutil.copytree(source, folder / "run", copy_function=os.symlink)
        path = folder / "run" / name
        content = change(path)
        path.unlink()
        written(folder / "run", name, content)
        return [*command, folder / "run"]
    return function


for each, keys, value, expected in [("options is an array", ["options"], [], "options"), ("options/no_sync is text", ["options", "no_sync"], "x", "run"),
                                    ("10^12 microbatches", ["options", "accumulate"], 10 ** 12, "accumulate"),
                                    ("-1 microbatches", ["options", "accumulate"], -1, "accumulate")]:
    kind("run.json", each, expected, (3,))(run_with("run.json", lambda path, keys=keys, value=value: changed(path, *keys, to=value)))
kind("run.json", "numerics is a number", "", (0, 3))(run_with("run.json", lambda path: changed(path, "numerics", to=0.5)))
for command in (["analyze"], ["simulate", "--workload"], ["check", "--candidate", RUN, "--baseline"]):
    kind("run.json", f"nested 100 000 times ({command[0]})", "nested deeper" if command == ["analyze"] else "", (0, 3, 5))(
        run_with("run.json", lambda path: changed(path, "hardware", to="@").replace('"@"', "[" * 100_000 + "]" * 100_000), command))
kind("run.json", "no JSON", "run.json: not valid JSON", (0, 3))(run_with("run.json", lambda path: "hello", ("analyze",)))
kind("metrics.jsonl", "noise", "metrics.jsonl", (0, 3))(run_with("metrics.jsonl", lambda path: random.Random(4).randbytes(999), ("analyze",)))
kind("rank0.actions.jsonl", "noise", "actions.jsonl", (0, 3))(
    run_with("rank0.actions.jsonl", lambda path: random.Random(5).randbytes(999), ("analyze",), RECORDED))
kind("workload.json", "cut off", "workload.json", (0, 3))(run_with("workload.json", lambda path: truncated(path.read_text(encoding="utf-8")), ("analyze",)))


# Things that are no files, have no end or are too large, in the place of every file that is read.

def put_socket(path):
    here = os.open(path.parent, os.O_RDONLY)  # a socket's path has at most 107 characters
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def put_sparse(path):
    with open(path, "wb") as file:
        file.truncate(30 << 30)


THINGS = [("a pipe without a writer", os.mkfifo), ("a socket", put_socket), ("a directory", os.mkdir), ("30 GiB without data", put_sparse),
          ("a link to /dev/zero", lambda path: path.symlink_to("/dev/zero")), ("a link to itself", lambda path: path.symlink_to(path.name)),
          ("a link to /proc/self/pagemap", lambda path: path.symlink_to("/proc/self/pagemap"))]
# What is read, the file's path, the command for it, and whether the file may be a pipe.
PLACES = [
    ("trace", "t.json", analyze, True),
    ("trace, compressed", "t.json.gz", analyze, True),
    ("spool", "rank0.spool", analyze, False),
    ("plan", "p.json", plan, True),
    ("config.json", "config.json", lambda path: ["plan", "--model", path], True),
    ("config.json", "m/config.json", model, False),
    ("hardware", "h.json", on_spec, True),
    ("calibration", "c.json", lambda path: ["simulate", "--model", MODEL, "--calibration", path], True),
    ("stacks", "s.json", lambda path: ["validate", "--stacks", path, "--runs", PUBLISHED], True),
    ("CSV", "r.csv", lambda path: ["validate", "--runs", path], True),
    ("CSV", "c.csv", lambda path: ["validate", "--collectives", path], True),
    ("baseline", "b.json", lambda path: ["check", "--baseline", path, "--candidate", RUN], True),
    ("search state", "s.jsonl", lambda path: [*SEARCH, path], False),
    ("summary", "rank0.summary.msgpack.gz", lambda path: ["merge", path], True),
    ("tokens", "t.bin", lambda path: train(path.parent, tokens=path, model_folder=MODEL), False),
    ("checkpoint", "s/checkpoint.json", verify, False),
]
for group, name, command, pipes in PLACES:
    for words, put in THINGS:
        if group == "tokens" and put is put_sparse:
            continue  # which are tokens

        def function(folder, name=name, command=command, put=put):
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            put(path)
            return command(path)
        codes = (2, 3, 4) if group == "search state" else (2, 3)  # a search also writes it
        kind(group, words, re.escape(pathlib.Path(name).name) if group != "checkpoint" else "checkpoint", codes, slow=pipes and put is os.mkfifo)(function)
# Files of a run, which are left out with a warning where the rest can be used.
for name, source in [("metrics.jsonl", RUN), ("rank0.actions.jsonl", RECORDED), ("run.json", RUN), ("plan.json", RUN), ("workload.json", RUN), ("config.json", RUN),
                     ("model.json", RECORDED)]:
    for words, put in THINGS:
        def function(folder, name=name, source=source, put=put):
            shutil.copytree(source, folder / "run", copy_function=os.symlink)
            (folder / "run" / name).unlink()
            put(folder / "run" / name)
            return ["analyze", folder / "run"]
        kind(name, words, re.escape(name), (0, 3))(function)
for name in ("model.safetensors", "model.safetensors.index.json"):
    for words, put in THINGS:
        def function(folder, name=name, put=put):
            written(folder, "m/config.json", json.dumps(CONFIG))
            put(folder / "m" / name)
            return ["checkpoint", "merge", folder / "m", "--out", folder / "o"]
        kind("safetensors", f"{words} as {name}", re.escape(name) + "|has no checkpoint", (2, 3))(function)


@kind("config.json", "a link out of the run, and --out", "link that leads out", (0,))
def _(folder):
    shutil.copytree(RUN, folder / "run", copy_function=shutil.copy)
    (folder / "config.json").write_bytes((folder / "run/config.json").read_bytes())
    (folder / "run/config.json").unlink()
    (folder / "run/config.json").symlink_to("../config.json")
    return ["simulate", "--workload", folder / "run", "--out", folder / "out"]


# Names that are not UTF-8, and a working directory that was removed.

for words, arguments in [("analyze", ["analyze"]), ("simulate", ["simulate", "--workload"]), ("advise", ["advise"]),
                         ("check", ["check", "--candidate", RUN, "--baseline"]), ("compare", ["compare", RUN]), ("calibrate", ["calibrate", "--capture"]),
                         ("plan", ["plan", "--from-trace"])]:
    def function(folder, arguments=arguments):
        run = folder / os.fsdecode(b"run\xff")
        shutil.copytree(RUN, run, copy_function=os.symlink)
        return [*arguments, run, "--json", *(["--out", folder / "c.json"] if arguments[0] == "calibrate" else [])]
    kind("names", f"a directory whose name is not UTF-8 ({words} --json)", "", (0, 5))(function)
for words, arguments, codes in [("analyze", ["analyze", RUN], (0,)), ("simulate", ["simulate", "--model", MODEL, "--hardware", "8xH100"], (0,)),
                                ("a relative path", ["analyze", "run"], (3,)), ("a relative --out", ["report", RUN, "--out", "r.html"], (4,))]:
    kind("working directory", f"removed: {words}", "" if codes == (0,) else "working directory no longer exists", codes)(
        lambda folder, arguments=arguments: Gone(arguments))


# Flags.

SIMULATE = ["simulate", "--model", MODEL, "--hardware", "8xH100"]
for flag, value in [("--batch", "99999999999999999999"), ("--batch", "-1"), ("--batch", "1e3"), ("--seq", "16777217"), ("--momentum", "nan"),
                    ("--operator-us", "1e300"), ("--accumulate", "1000000"), ("--world-size", "4294967296"), ("--slow-rank", "0:nan"),
                    ("--precision", "fp8"), ("--mesh", "2x"), ("--mesh", "99999999999x99999999999")]:
    kind("flags", f"{flag} {value}", re.escape(flag.strip("-")))(lambda folder, flag=flag, value=value: [*SIMULATE, flag, value])
for flag, value in [("--seed", "-1"), ("--nproc", "100000"), ("--threads", "1000000"), ("--steps", "0"), ("--lr", "inf"), ("--clip", "nan"), ("--timeout", "0")]:
    kind("flags", f"{flag} {value}", re.escape(flag))(
        lambda folder, flag=flag, value=value: ["capture", "--model", MODEL, "--tokens", TOKENS, "--out", folder / "o", flag, value])
for words, value, expected in [("--comm-regex with 20 000 parentheses", "(" * 20000 + ")" * 20000, ""), ("--comm-regex (", "(", "comm-regex"),
                               ("--steps 5:2", None, "steps")]:
    kind("flags", words, expected, (0, 2, 3))(lambda folder, value=value: ["analyze", RUN, *(["--comm-regex", value] if value else ["--steps", "5:2"])])
kind("flags", "--comm-regex (a*)*b, which takes exponential time elsewhere", "", (0,))(lambda folder: ["analyze", RUN, "--comm-regex", "(a*)*b"])
kind("flags", "simulate --accumulate 10000 --out", "at most 10000000", (2,))(lambda folder: [*SIMULATE, "--accumulate", "10000", "--out", folder / "o"])
kind("flags", "search --batch 65536", "at most 200000 operators", (0,), slow=True)(
    lambda folder: ["search", "--model", MODEL, "--hardware", "8xH100", "--memory-limit", "80GiB", "--batch", "65536"])
kind("flags", "simulate --accumulate 10000 of 126 layers", "at most 2500000 operators", (3,))(
    lambda folder: ["simulate", "--hardware", "8xH100", "--accumulate", "10000", "--model",
                    written(folder, "config.json", changed(CONFIG, "num_hidden_layers", to=126))])
kind("flags", "--world-size 65537 --backend emulated", "at most 65536")(
    lambda folder: ["capture", "--model", MODEL, "--tokens", TOKENS, "--out", folder / "o", "--backend", "emulated", "--world-size", "65537"])
for flag in ("--hardware", "--strategy", "--mesh", "--stack", "--precision", "--slow-rank", "--calibration", "--plan", "--out"):
    kind("flags", f"a value of 5000 characters of {flag}", "nnnn", (4,) if flag == "--out" else (2, 3))(
        lambda folder, flag=flag: [*(SIMULATE[:3] if flag in ("--hardware", "--calibration") else SIMULATE), flag, "n" * 5000])
kind("flags", "--device -1", "--device -1: expected")(lambda folder: ["analyze", RUN, "--device", "-1"])
kind("flags", "an unknown flag of 10 000 characters", "unknown flag")(lambda folder: ["analyze", RUN, "--" + "x" * 10000])
kind("flags", "an unknown subcommand with escape sequences", "unknown subcommand")(lambda folder: ["\x1b]0;x\x07"])


# One value removed or replaced, anywhere in a document.

VALUES = [None, True, -1, 0, 1e300, 10 ** 19, 2 ** 63 - 1, -2 ** 63, 0.5, "", "x", "\x1b[31m<script>", "=1+1", "a" * 10000, [], {}, [None], [[]], {"a": None},
          [-1], ["x"], [1e300]]


def places(document, at=()):
    yield at
    if isinstance(document, dict):
        for key in document:
            yield from places(document[key], (*at, key))
    elif isinstance(document, list):
        for index in range(min(len(document), 2)):
            yield from places(document[index], (*at, index))


def mutants(source, count, seed):
    document = json.loads(source.read_text(encoding="utf-8"))
    every = [(place, value) for place in places(document) if place for value in [KeyError, *VALUES]]
    for place, value in random.Random(seed).sample(every, min(count, len(every))):
        yield "/".join(map(str, place)), changed(document, *place, remove=True) if value is KeyError else changed(document, *place, to=value)


def mutated_formats(folder):
    """(name, document, arguments of the command for a file or a run with the document)."""
    command = BINARIES / "shardlens"
    subprocess.run([command, "calibrate", "--capture", RUN, "--out", folder / "c.json"], capture_output=True, check=True)
    subprocess.run([command, "check", "--baseline", RUN, "--candidate", RUN, "--save-baseline", folder / "b.json"], capture_output=True, check=False)

    def alone(name, arguments):
        return lambda place, text: arguments(written(place, name, text))

    def inside(name, source, *command):
        return lambda place, text: run_with(name, lambda path: text, command, source)(place)
    return [("config.json", MODEL / "config.json", alone("config.json", model)), ("model.json", RECORDED / "model.json", inside("model.json", RECORDED, "analyze")),
            ("plan.json", RUN / "plan.json", alone("p.json", plan)), ("run.json", RUN / "run.json", inside("run.json", RUN, "simulate", "--workload")),
            ("run.json (advise)", RUN / "run.json", inside("run.json", RUN, "advise")), ("workload.json", RUN / "workload.json", inside("workload.json", RUN, "analyze")),
            ("hardware", SPEC, alone("h.json", on_spec)), ("calibration", folder / "c.json", alone("c.json", lambda path: ["simulate", "--model", MODEL, "--calibration", path])),
            ("baseline", folder / "b.json", alone("b.json", lambda path: ["check", "--baseline", path, "--candidate", RUN])),
            ("stacks", STACKS, alone("s.json", lambda path: ["validate", "--runs", PUBLISHED, "--stacks", path]))]


BINARIES = None


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def leave():
    """The working directory of the command is removed."""
    os.chdir(tempfile.mkdtemp(prefix="shardlens-gone-"))
    os.rmdir(os.getcwd())
    limit()


def is_json(text):
    try:
        json.loads(text)
        return True
    except ValueError:  # also bytes that are not UTF-8
        return False


def answer(arguments, codes, pattern):
    """(problem or None, message)"""
    # The workers load gigabytes of libraries.
    limited = None if arguments[0] == "capture" or os.environ.get("SHARDLENS_UNLIMITED") else limit
    if isinstance(arguments, Gone):
        limited = leave
    try:
        done = subprocess.run([BINARIES / "shardlens", *arguments], stdin=subprocess.DEVNULL, capture_output=True, preexec_fn=limited, check=False,
                              timeout=SECONDS * (4 if arguments[0] == "capture" else 1))
    except subprocess.TimeoutExpired:
        return f"took longer than {SECONDS} s", ""
    text = done.stderr.decode("utf-8", "backslashreplace")
    if done.returncode == 0:  # warnings are part of the result
        text += "".join(line + "\n" for line in done.stdout.decode("utf-8", "backslashreplace").splitlines() if pattern and re.search(pattern, line))
    if done.returncode not in codes:
        return f"exit {done.returncode}, expected {codes}: {text[-500:]}", text
    if done.returncode == 0 and "--json" in arguments and not is_json(done.stdout):
        return f"not JSON: {done.stdout[:500]}", text
    if pattern and not re.search(pattern, text):
        return f"no '{pattern}' in: {text[:500]}", text
    for raw in RAW:
        if raw in text:
            return f"'{raw}' in: {text[:500]}", text
    if raw := raw_text.raw_in(done.stderr):
        return f"{', '.join(sorted(raw))} in: {text[:200]!r}", text
    if len(text) > 4100 + 500 * text.count("\n"):
        return f"a message of {len(text)} characters", text
    return None, text


def shown(text, folder):
    line = next((line for line in text.splitlines() if line.strip()), "(none)")
    for name in (str(folder) + "/", str(ROOT) + "/", "shardlens: "):
        line = line.replace(name, "")
    line = line.replace(str(folder), "DIR")
    return line


def try_kind(row):
    group, words, pattern, codes, _, _, function = row
    with tempfile.TemporaryDirectory(prefix="shardlens-inputs-") as name:
        folder = pathlib.Path(name).resolve()
        problem, text = answer(function(folder), codes, pattern)
        return group, words, problem, shown(text, folder)


def try_mutant(job):
    name, where, text, arguments = job
    with tempfile.TemporaryDirectory(prefix="shardlens-inputs-") as folder:
        problem, _ = answer(arguments(pathlib.Path(folder).resolve(), text), (0, 1, 2, 3, 5), "")
        return name, where, problem


def main():
    global BINARIES  # pylint: disable=global-statement
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="folder with shardlens")
    parser.add_argument("--only", default="", help="regular expression on the kind's name")
    parser.add_argument("--quick", action="store_true", help="not those that start workers or take ten seconds")
    parser.add_argument("--mutate", type=int, default=0, metavar="N", help="also N changed documents of each JSON format")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of changed documents")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--write", type=pathlib.Path, help="the document whose table is replaced")
    options = parser.parse_args()
    BINARIES = options.bin.resolve()
    has_worker = not options.quick and (BINARIES / "shardlens-worker").exists()
    chosen = [row for row in KINDS if re.search(options.only, f"{row[0]}: {row[1]}")]
    tried = [row for row in chosen if (has_worker or not row[4]) and not (options.quick and row[5])]
    failed, rows, number = 0, [], 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for group, words, problem, message in pool.map(try_kind, tried):
            rows.append((group, words, message))
            if problem:
                failed += 1
                print(f"FAILED  {group}: {words}: {problem}", flush=True)
        if options.mutate:
            with tempfile.TemporaryDirectory(prefix="shardlens-inputs-") as folder:
                jobs = [(name, where, text, arguments) for name, source, arguments in mutated_formats(pathlib.Path(folder))
                        for where, text in mutants(source, options.mutate, options.seed)]
            number = len(jobs)
            for name, where, problem in pool.map(try_mutant, jobs):
                if problem:
                    failed += 1
                    print(f"FAILED  {name}, {where}: {problem}", flush=True)
    print(f"{len(tried)} kinds of bad input and {number} changed documents, {failed} answered wrongly, {len(chosen) - len(tried)} skipped (they need workers or time)")
    if options.write and not failed:
        reliability_table.replace(options.write, "inputs", ("input", "kind", "answer"), rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
