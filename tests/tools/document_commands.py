#!/usr/bin/env python3
"""Runs the commands of the documents as a reader would type them, and compares what they print with what the document says.

    document_commands.py --bin DIR [--with NEED]... [DOCUMENT...]
    document_commands.py --bin DIR --update …        also writes numbers that changed into the documents
    document_commands.py --bin DIR --self-test       documents with one untrue sentence of each kind must be found out

Every ```sh block of a document is run, in order, in a folder that looks like the repository's root with DIR as build/release/bin; each
document gets a fresh one. A block whose first line is `# needs: NAME` is skipped unless --with names it. A command that fails, or takes longer
than its limit, is reported with the document's line. Exit 1 if one failed.

A ```text block right below a ```sh block is its output (document_output.py says how numbers that vary are marked). Subcommands and flags of
the programs that any document names must be those that their help has (document_flags.py).
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import document_flags
import document_output

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIMIT = 300  # seconds a block
HIDDEN = {".git", "build", "out"}


def lay_out(folder, binaries):
    """A folder that looks like the repository's root; what a command writes stays in it."""
    for entry in ROOT.iterdir():
        if entry.name not in HIDDEN:
            (folder / entry.name).symlink_to(entry)
    (folder / "build").mkdir()
    if (binaries.parent / "build.ninja").exists():  # commands may build more there
        (folder / "build" / "release").symlink_to(binaries.parent)
    else:
        (folder / "build" / "release").mkdir()
        (folder / "build" / "release" / "bin").symlink_to(binaries)


def name_of(document):
    return document.relative_to(ROOT) if document.is_relative_to(ROOT) else document.name


def update(document, block, printed):
    """Replaces the output of a block by what is printed now, if only numbers differ."""
    if now := document_output.updated(block.output, printed):
        lines = document.read_text(encoding="utf-8").splitlines()
        lines[block.output_line - 1:block.output_line - 1 + len(block.output.splitlines())] = now.splitlines()
        document.write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_block(text, folder, environment, limit=LIMIT):
    """Runs the commands of a block: what went wrong, or "", and what they printed."""
    try:
        result = subprocess.run(["bash", "-eo", "pipefail", "-c", text], cwd=folder, timeout=limit, check=False, text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    except subprocess.TimeoutExpired:
        return f"took longer than {limit} s\n{text}", ""
    return "" if result.returncode == 0 else f"exit {result.returncode}\n{text}\n{result.stdout[-2000:]}", result.stdout


def run(document, binaries, having, write=False):
    """(commands run, blocks skipped, failures) of one document. write: see update()."""
    ran = skipped = 0
    failures = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lay_out(folder, binaries)
        for block in document_output.blocks(document.read_text(encoding="utf-8")):
            where = f"{name_of(document)}:{block.line}"
            if block.needs and not set(block.needs.split()) <= having:
                skipped += 1
                continue
            ran += 1
            failure, printed = run_block(block.commands, folder, {**os.environ, "QT_QPA_PLATFORM": "offscreen"})
            if failure:
                failures.append(f"{where}: {failure}")
            elif block.output is not None and (difference := document_output.difference(block.output, printed, block.numbers_vary)):
                failures.append(f"{name_of(document)}:{block.output_line}: {difference}\n{block.commands}")
                if write:
                    update(document, block, printed)
    return ran, skipped, failures


UNTRUE = {
    "output": ("```sh\necho 2 units, 30 ms\n```\n\n```text\n3 units, ~29 ms\n```\n", "2 units, 30 ms"),
    "output that ends earlier": ("```sh\nseq 3\n```\n\n<!-- numbers vary -->\n```text\n7\n8\n```\n", "nothing more"),
    "subcommand": ("`shardlens simulat --model M`", "no subcommand simulat"),
    "flag of a subcommand": ("```text\nshardlens simulate --model M\n                   --critical-path\n```\n", "simulate has no --critical-path"),
    "flag": ("give `--found" "-nowhere` to it", "nothing has --found" "-nowhere"),
}
TRUE = """`shardlens simulate --batch 2`, `--batch`, `torchrun --nproc-per-node 2`

```sh
printf 'step  12.5 ms\\nunits  3\\nsteps 8\\nend\\n'
```

```text
step  ~13.0 ms
…
steps …
end
```
"""


def self_test(binaries):
    flags = document_flags.of_programs(binaries)
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        for kind, (text, message) in {**UNTRUE, "true": (TRUE, None)}.items():
            document = pathlib.Path(name) / "page.md"
            document.write_text(text, encoding="utf-8")
            found = run(document, binaries, set())[2] + list(document_flags.unknown(document.name, text, flags))
            if [message] != [message if message and message in each else each for each in found] and (message or found):
                wrong.append(f"{kind}: expected '{message}', found {found}")
    if document_output.updated("a 1\n\n…\nb ~2", "a 3\nx\nb 9") != "a 3\n\n…\nb ~2":
        wrong.append("numbers are not written again")
    print("\n".join(wrong) or f"document_commands self-test: {len(UNTRUE)} untrue sentences found")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="folder with the programs")
    parser.add_argument("--with", dest="having", action="append", default=[], help="what is there that some blocks need")
    parser.add_argument("--update", action="store_true", help="write numbers that changed into the documents")
    parser.add_argument("--self-test", action="store_true", help="test this program")
    parser.add_argument("documents", nargs="*", type=pathlib.Path, help="[README.md, CONTRIBUTING.md and docs]")
    options = parser.parse_args()
    if options.self_test:
        return self_test(options.bin.resolve())
    documents = [d.resolve() for d in options.documents] or [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    flags = document_flags.of_programs(options.bin.resolve())
    total = skipped = 0
    failures = []
    for document in documents:
        ran, left, failed = run(document, options.bin.resolve(), set(options.having), options.update)
        failed += document_flags.unknown(name_of(document), document.read_text(encoding="utf-8"), flags)
        total, skipped, failures = total + ran, skipped + left, failures + failed
    print("\n\n".join(failures))
    print(f"{total} blocks of commands run, {skipped} skipped, {len(failures)} failed")
    return 1 if failures or total == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
