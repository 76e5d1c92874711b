#!/usr/bin/env python3
"""Checks that everything that names the version of Shardlens names the one of the Python package.

    check_version.py PROGRAM      PROGRAM is shardlens; exit 1 if something names another version
"""
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as tree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def main():
    version = re.search(r'^__version__ = "([0-9.]+)"$', text("python/shardlens/__init__.py"), re.M)[1]
    printed = subprocess.run([sys.argv[1], "--version"], capture_output=True, text=True, check=True).stdout
    release = tree.fromstring(text("gui/data/io.github.shardlens.Shardlens.metainfo.xml")).find("releases")[0].get("version")
    found = [("shardlens --version", printed.split()[1]), ("the newest release in gui/data/*.metainfo.xml", release)]
    for document in sorted((ROOT / "docs").rglob("*.md")):
        found += [(str(document.relative_to(ROOT)), name) for name in re.findall(r"\bshardlens[-_]([0-9]+\.[0-9]+\.[0-9]+)[-_]", document.read_text(encoding="utf-8"))]
        found += [(str(document.relative_to(ROOT)), f"{name}.{version.split('.')[2]}")
                  for name in re.findall(r"find_package\(Shardlens ([0-9]+\.[0-9]+)", document.read_text(encoding="utf-8"))]
    wrong = [f"{where} has {name}, python/shardlens/__init__.py {version}" for where, name in found if name != version]
    print("\n".join(wrong) or f"{len(found)} places have version {version}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
