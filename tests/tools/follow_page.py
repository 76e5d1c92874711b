#!/usr/bin/env python3
"""Follows a page of the documents from `pip install` on, in a new virtual environment, and prints how long each of its blocks takes.

    follow_page.py WHEEL [PAGE]      WHEEL: shardlens-*.whl of scripts/wheel; PAGE: docs/use/gate-ci.md

The blocks are those that need PyTorch or the package index and nothing else. Nothing but the virtual environment and the system is on PATH, and PYTHONPATH is empty. The page's folder has the wheel and looks like the
repository's root. Needs the package index, and about 5 GB for torch. Exit code 1 at the first block that fails.
"""
import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import document_commands
import document_output

ROOT = document_commands.ROOT
LIMIT = 1800  # seconds a block: pip may have to download torch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("page", type=Path, nargs="?", default=ROOT / "docs" / "use" / "gate-ci.md")
    options = parser.parse_args()
    wheel, page = options.wheel.resolve(), options.page.resolve()
    print(f"{page.relative_to(ROOT)} with {wheel.name}, Python {platform.python_version()}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder, home, environment = scratch / "page", scratch / "home", scratch / "venv"
        for each in (folder, home):
            each.mkdir()
        document_commands.lay_out(folder, scratch)
        (folder / wheel.name).symlink_to(wheel)
        begun = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        print(f"{time.monotonic() - begun:7.1f} s  python3 -m venv", flush=True)
        kept = {key: value for key, value in os.environ.items() if key.startswith("PIP_") or key in ("LANG", "SSL_CERT_FILE")}
        variables = {**kept, "PATH": f"{environment}/bin:/usr/bin:/bin", "HOME": str(home), "VIRTUAL_ENV": str(environment), "TMPDIR": name}
        total = 0.0
        for block in document_output.blocks(page.read_text(encoding="utf-8")):
            if not block.needs or not set(block.needs.split()) <= {"pytorch", "network"}:
                continue
            line, text = block.line, block.commands
            begun = time.monotonic()
            failure, _ = document_commands.run_block(text, folder, variables, LIMIT)
            took = time.monotonic() - begun
            total += took
            commands = [each for each in text.splitlines() if not each.startswith("#")]
            more = f" and {len(commands) - 1} lines more" if len(commands) > 1 else ""
            print(f"{took:7.1f} s  line {line}: {commands[0]}{more}", flush=True)
            if failure:
                sys.exit(f"{page.relative_to(ROOT)}:{line}: {failure}")
        print(f"{total:7.1f} s  all blocks")
        packages = subprocess.run([environment / "bin/python", "-m", "pip", "list", "--format", "freeze"], env=variables, capture_output=True, text=True, check=True).stdout
        print("  ".join(row for row in packages.splitlines() if row.partition("==")[0] in ("shardlens", "torch", "transformers", "accelerate", "pytest")))


if __name__ == "__main__":
    main()
