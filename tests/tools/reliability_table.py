"""Tables of bench/RELIABILITY.md that scripts write: the lines between `<!-- table NAME -->` and `<!-- end -->`."""
import pathlib
import re

WIDEST = 150  # characters of a message


def cell(text):
    text = " ".join(str(text).split())
    text = text if len(text) <= WIDEST else text[:WIDEST - 1] + "…"
    return re.sub(r"([\\|`*<>\[\]])", r"\\\1", text)


def table(columns, rows):
    lines = [columns, ["---"] * len(columns), *([cell(c) for c in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def replace(document: pathlib.Path, name, columns, rows):
    text = document.read_text(encoding="utf-8")
    mark = f"<!-- table {name} -->\n"
    begin = text.index(mark) + len(mark)
    document.write_text(text[:begin] + "\n" + table(columns, rows) + "\n" + text[text.index("<!-- end -->", begin):], encoding="utf-8")
