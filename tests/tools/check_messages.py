#!/usr/bin/env python3
"""Checks that the messages that docs/use/troubleshooting.md explains are in the sources, and explained once.

    check_messages.py      exit 1 if a heading's message is nowhere in the sources
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def literals():
    """The text of all string literals, those that follow each other joined, as the compiler does."""
    out = []
    for folder in ("core", "profiler", "sim", "cli", "gui"):
        for file in sorted((ROOT / folder).rglob("*.cpp")):
            text = re.sub(r'"\s*\n\s*"', "", file.read_text(encoding="utf-8"))
            out += re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)
    return "\n".join(out)


def main():
    headings = re.findall(r"^### (.*)$", (ROOT / "docs" / "use" / "troubleshooting.md").read_text(encoding="utf-8"), re.M)
    messages = [each for heading in headings for each in re.findall(r"`([^`]+)`", heading)]
    known = literals()
    wrong = [f"docs/use/troubleshooting.md: no source has the message '{each}'" for each in messages if each not in known]
    wrong += [f"docs/use/troubleshooting.md: '{each}' is explained twice" for each in set(messages) if messages.count(each) > 1]
    print("\n".join(wrong) or f"{len(messages)} messages are in the sources")
    return 1 if wrong or not messages else 0


if __name__ == "__main__":
    sys.exit(main())
