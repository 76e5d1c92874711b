"""The commands that write files, each with inputs of its own and what it writes, for check_writes.py."""
import re


class Writer:
    """A command line. Its words are relative to a lab's folder: in/… is read, {out} is what it writes.

    kind: 'file', 'growing' (a file that is written line by line, in any order), or a directory: 'adds' files with names of its own, 'shared' also
    to a directory that it reads, 'emptied' before it is written, 'new' must not have been there. Of an output that is not `exact` two runs differ,
    so only its form is checked. `kept`: what may stay after a fault, because it can be read."""

    def __init__(self, name, words, inputs, kind, quick=False, exact=True, needs="shardlens", force=True, kept=r"$^"):
        self.name, self.words, self.inputs, self.kind, self.quick = name, words.split() if isinstance(words, str) else words, inputs, kind, quick
        self.exact, self.needs, self.kept = exact, needs, re.compile(kept)
        self.force = force and kind in ("file", "adds")

    @property
    def is_file(self):
        return self.kind in ("file", "growing")

    def is_same(self, now, new):
        return sorted(now.splitlines()) == sorted(new.splitlines()) if self.kind == "growing" else now == new

    def is_part(self, now, new):
        """Whether `now` may be there after a fault, although it is not complete."""
        lines = now.split(b"\n")
        return self.kind == "growing" and set(lines[:-1]) <= set(new.split(b"\n")) and any(each.startswith(lines[-1]) for each in new.split(b"\n"))


STEP = "--batch 1 --seq 16"
# The recorder never ends the program that it records: it warns.
RECORD = """
import sys, warnings, torch, torch.distributed as dist, shardlens
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(8, 8)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    with shardlens.record(sys.argv[1], model=model, optimizer=optimizer, warmup=1, steps=1, force="--force" in sys.argv) as recorder:
        for _ in range(2):
            model(torch.randn(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
given_up = [str(each.message) for each in warned if "shardlens" in str(each.message)]
dist.destroy_process_group()
print(*given_up, file=sys.stderr)
sys.exit(4 if given_up else 0)
"""
WRITERS = [
    Writer("report", "report in/run --out {out}", ["in/run"], "file", quick=True),
    Writer("report of a plan", "report in/run --plan in/plan.json --out {out}", ["in/run", "in/plan.json"], "file"),
    Writer("calibrate", "calibrate --capture in/run --out {out}", ["in/run"], "file"),
    Writer("search --out", f"search --model in/model --plan in/plan.json --hardware in/spec.json {STEP} --memory-limit 80GiB --out {{out}}",
           ["in/model", "in/plan.json", "in/spec.json"], "file"),
    Writer("search of a run", "search --workload in/run --memory-limit 80GiB --out {out}", ["in/run"], "file"),
    Writer("search --state", f"search --model in/model --hardware 8xH100 {STEP} --memory-limit 80GiB --threads 1 --state {{out}}", ["in/model"], "growing"),
    Writer("check --junit", "check --baseline in/run --candidate in/other --inconclusive-is pass --junit {out}", ["in/run", "in/other"], "file", quick=True),
    Writer("check --markdown", "check --baseline in/run --candidate in/other --inconclusive-is pass --markdown {out}", ["in/run", "in/other"], "file"),
    Writer("check --save-baseline", "check --baseline in/run --save-baseline {out}", ["in/run"], "file"),
    Writer("convert to a file", "convert in/run --out {out}.json.gz", ["in/run"], "file", quick=True),
    Writer("convert a file", "convert in/trace.json.gz --out {out}.json.gz", ["in/trace.json.gz"], "file"),
    Writer("convert to a directory", "convert in/run --out {out}", ["in/run"], "adds", quick=True),
    Writer("plan --to", "plan --model in/model --to {out}.json", ["in/model"], "file"),
    Writer("plan --from-trace", "plan --from-trace in/run --out {out}", ["in/run"], "adds", quick=True),
    Writer("plan --from-trace FILE", "plan --from-trace in/run/rank0.pt.trace.json.gz --out {out}", ["in/run/rank0.pt.trace.json.gz"], "adds"),
    Writer("advise", "advise in/advised --out {out}", ["in/advised"], "adds"),
    Writer("analyze --summarize", "analyze in/run --summarize --out {out}", ["in/run"], "shared"),
    Writer("completion man", "completion man --out {out}", [], "adds"),
    Writer("simulate a model", f"simulate --model in/model --plan in/plan.json --hardware 4xPCIe {STEP} --out {{out}}", ["in/model", "in/plan.json"], "emptied"),
    Writer("simulate a run", "simulate --workload in/run --out {out}", ["in/run"], "emptied", quick=True),
    Writer("checkpoint merge", "checkpoint merge in/checkpoint --out {out}", ["in/checkpoint"], "new"),
    Writer("checkpoint convert", "checkpoint convert in/model --world-size 2 --out {out}", ["in/model"], "new", quick=True),
    Writer("gui --export-png", "gui in/run --export-png {out}.png", ["in/run"], "file", needs="shardlens-gui", exact=False),
    Writer("capture --out", f"capture --model in/model --tokens in/tokens.bin --plan in/plan.json --nproc 1 --steps 2 {STEP} --out {{out}}",
           ["in/model", "in/tokens.bin", "in/plan.json"], "emptied", needs="shardlens-worker", exact=False, kept=r".*/rank\d+\.spool"),
    Writer("capture --save", f"capture --model in/model --tokens in/tokens.bin --nproc 1 --steps 2 {STEP} --out work/run --save {{out}}", ["in/model", "in/tokens.bin"],
           "adds", needs="shardlens-worker", exact=False, force=False),
    Writer("capture --save full", f"capture --model in/model --tokens in/tokens.bin --nproc 1 --steps 2 {STEP} --save-format full --out work/run --save {{out}}",
           ["in/model", "in/tokens.bin"], "adds", needs="shardlens-worker", exact=False),
    Writer("calibrate --keep", "calibrate --probe --nproc 1 --out work/calibration.json --keep {out}", [], "new", needs="minutes"),
    Writer("shardlens.record", ["-c", RECORD, "{out}"], [], "adds", needs="torch", exact=False),
    Writer("shardlens.export", "-m shardlens.export --call examples.python.models.two_tower:make_model --batch 1 --seq 16 --out {out}", [], "file",
           needs="torch", force=False),
]

# A command's other outputs, which may change and are not judged.
ALSO_WRITTEN = ("work/run",)
