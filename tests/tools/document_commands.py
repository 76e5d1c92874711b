#!/usr/bin/env python3
"""Runs the commands of the documents as a reader would type them.

    document_commands.py --bin DIR [--with NEED]... [DOCUMENT...]

Every ```sh block of a document is run, in order, in a folder that looks like the repository's root with DIR as build/release/bin; each
document gets a fresh one. A block whose first line is `# needs: NAME` is skipped unless --with names it. A command that fails, or takes longer
than its limit, is reported with the document's line. Exit 1 if one failed.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIMIT = 300  # seconds a block
HIDDEN = {".git", "build", "out"}


def blocks(document):
    """(line number, need or "", text) of each block of shell commands."""
    lines = document.read_text(encoding="utf-8").splitlines()
    start = None
    for number, line in enumerate(lines, 1):
        if start is None and line.strip() == "```sh":
            start = number + 1
        elif start is not None and line.strip() == "```":
            text = lines[start - 1:number - 1]
            first = text[0].strip() if text else ""
            need = first.removeprefix("# needs:").strip() if first.startswith("# needs:") else ""
            yield start, need, "\n".join(text)
            start = None


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


def run(document, binaries, having):
    """(commands run, blocks skipped, failures) of one document."""
    ran = skipped = 0
    failures = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lay_out(folder, binaries)
        for line, need, text in blocks(document):
            if need and not set(need.split()) <= having:
                skipped += 1
                continue
            try:
                result = subprocess.run(["bash", "-eo", "pipefail", "-c", text], cwd=folder, timeout=LIMIT, check=False, text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        env={**os.environ, "QT_QPA_PLATFORM": "offscreen"})
                ran += 1
                if result.returncode != 0:
                    failures.append(f"{document.relative_to(ROOT)}:{line}: exit {result.returncode}\n{text}\n{result.stdout[-2000:]}")
            except subprocess.TimeoutExpired:
                failures.append(f"{document.relative_to(ROOT)}:{line}: took longer than {LIMIT} s\n{text}")
    return ran, skipped, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="folder with the programs")
    parser.add_argument("--with", dest="having", action="append", default=[], help="what is there that some blocks need")
    parser.add_argument("documents", nargs="*", type=pathlib.Path, help="[README.md and docs]")
    options = parser.parse_args()
    documents = [d.resolve() for d in options.documents] or [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    total = skipped = 0
    failures = []
    for document in documents:
        ran, left, failed = run(document, options.bin.resolve(), set(options.having))
        total, skipped, failures = total + ran, skipped + left, failures + failed
    print("\n\n".join(failures))
    print(f"{total} blocks of commands run, {skipped} skipped, {len(failures)} failed")
    return 1 if failures or total == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
