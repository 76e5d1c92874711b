#!/usr/bin/env python3
"""Runs every client of shardlens.clients with its real package on two Gloo ranks, also those that CI does not install, and the page docs/use/gate-ci.md.

    check_clients.py OUT [CASE…] [--page]      run it with a Python that has the packages of tests/tools/recorded_programs.txt and tensorboard

Each case of tests/python/client_training.py trains without and with its client. Losses must be equal to the bit, and units and microbatches those that
the table below has. --page also runs the page's commands as a reader would type them; torchrun, pytest and shardlens must be on PATH. Exit code 1 if something differs.
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {f"layers.{i}" for i in range(3)}
# case: (units of the plan, microbatches)
CASES = {
    "accelerate": ({""}, 2),
    "torchtitan": ({"tok_embeddings", *LAYERS, "['norm', 'output']"}, 1),
    "trl": ({"model.embed_tokens", *(f"model.{layer}" for layer in LAYERS), "['model.norm', 'lm_head']"}, 2),
}


def differences(out, case):
    """The differences from what is expected, as texts."""
    units, microbatches = CASES[case]
    for rank in (0, 1):
        found = json.loads((out / f"{case}.rank{rank}.json").read_text())
        if found["plain"] != found["recorded"] or not found["plain"]:
            yield f"rank {rank}: losses {found['plain']} without the client, {found['recorded']} with it"
        yield from found["warnings"]
    plan = json.loads((out / case / "plan.json").read_text())
    names = {str(unit["modules"]) for unit in plan["units"]}
    if names != units:
        yield f"units {sorted(names)}, expected {sorted(units)}"
    run = json.loads((out / case / "run.json").read_text())
    if run["step_settings"]["accumulate"] != microbatches:
        yield f"{run['step_settings']['accumulate']} microbatches, expected {microbatches}"
    yield from run["notes"]


def follow_page():
    import document_commands

    page = ROOT / "docs" / "use" / "gate-ci.md"
    ran, _, failures = document_commands.run(page, ROOT / "build" / "release" / "bin", {"pytorch"})
    print(f"{page.relative_to(ROOT)}: {ran} blocks ran, {len(failures)} failed")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    failures = []
    for case in options.cases or CASES:
        done = subprocess.run([sys.executable, ROOT / "tests" / "python" / "client_training.py", options.out, case], capture_output=True, text=True, check=False)
        found = [f"exit code {done.returncode}: {done.stderr[-2000:]}"] if done.returncode else list(differences(options.out, case))
        print(f"{case}: {'; '.join(found) or 'losses, units and microbatches as expected'}", flush=True)
        failures += found
    if options.page:
        found = follow_page()
        print("\n".join(found))
        failures += found
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
