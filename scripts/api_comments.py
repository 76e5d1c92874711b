#!/usr/bin/env python3
"""Writes copies of headers in which Doxygen finds the comments: "//" becomes "///", and a comment behind a declaration "///<".

    api_comments.py OUT HEADER...      OUT/HEADER has as many lines as HEADER; exit 1 if a class has no comment
    api_comments.py --self-test

A class has one above it or behind its first line, unless it is inside another or in a namespace `detail`.

The comments are plain text, so what Doxygen would take for a command, a tag, a link or emphasis is escaped. Lines like "Errors   UsageError if …"
become paragraphs, indented lines become code, and lists stay lists.
"""
import pathlib
import re
import sys

OWN = re.compile(r"^( *)//(?!/)(.*)$")
BEHIND = re.compile(r"^(.*?[;,{}(] *)//(?!/) ?(?!NOLINT)(.*)$")
MEMBER_END = re.compile(r"[;,] *$")
DEFINITION = re.compile(r"^(?:class|struct|enum class) (?:\[\[nodiscard\]\] )?([A-Za-z_]\w*[^:{;]*?) ?(?:final )?(?::[^;{]*)?\{? *(?://(.*))?$")
SECTION = re.compile(r"^ ([A-Za-z]+):?(  +| (?=any\.))(.*)$")
SECTIONS = {"Bound", "Complexity", "Consumers", "Errors", "Layout", "Ownership", "Returns", "Semantics", "Shapes", "Source", "Sources", "Streams", "Threads", "Units"}
ITEM = re.compile(r"^ +(-|\d+\.) ")


def escaped(text):
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a name whose end is in another line
        parts = ["`".join(parts)]
    for index, part in enumerate(parts):
        part = re.sub(r"([\\@<>#&$%\"|])", r"\\\1", part)
        part = re.sub(r"(?<![\w>)])::|(?<=>)::", r"\\::", part)
        part = re.sub(r"--+", lambda found: "\\" + found[0], part)
        parts[index] = f"<code>{part}</code>" if index % 2 else part
    return "".join(parts)


class Comments:
    """The state within one header: what the line before was."""

    def __init__(self):
        self.block = ""  # "", "text", "item", "section" or "code": the part of the comment that the last line belongs to
        self.behind = 0  # the column of the comment behind a member in the line before, or 0
        self.detail = False  # in a namespace of details
        self.bare = []  # (index of the line, class without a comment)
        self.described = False  # the line before belongs to a comment, or to the template<> line below one

    def copied(self, lines):
        for index, line in enumerate(lines):
            if line.startswith("namespace "):
                self.detail = "detail" in line
            defined = DEFINITION.match(line)
            if defined and defined[2]:
                yield f"/** {escaped(defined[2].strip())} */ {line[:line.index('//')].rstrip()}"
                self.block, self.behind = "", 0
            else:
                if defined and not self.described and not self.detail:
                    self.bare.append((index, defined[1]))
                yield self.line(line)
            self.described = line.startswith("//") or (self.described and line.startswith(("template", "         ")))

    def line(self, line):
        own = OWN.match(line)
        if own is not None and "NOLINT" not in own[2]:
            if self.behind and len(own[1]) == self.behind:
                return f"{own[1]}///< {escaped(own[2].strip())}"
            return own[1] + self.own(own[2])
        self.block = ""
        behind = BEHIND.match(line)
        self.behind = 0
        if behind is None or behind[1].count('"') % 2 or behind[1].lstrip().startswith(("#", "}", "namespace")) or not MEMBER_END.search(behind[1]):
            return line
        self.behind = len(behind[1])
        return f"{behind[1]}///< {escaped(behind[2])}"

    def own(self, text):
        self.behind = 0
        section = SECTION.match(text)
        indent = len(text) - len(text.lstrip())
        if not text.strip():
            self.block = "text"
            return "///"
        if section and section[1] in SECTIONS:
            self.block = "section"
            return f"/// <p><b>{section[1]}</b> {escaped(section[3])}"
        if ITEM.match(text):
            self.block = "item"
            marker, rest = text.lstrip().split(" ", 1)
            return f"///   {'-' if marker == '-' else '-#'} {escaped(rest.strip())}"
        if indent >= 3 and self.block not in ("item", "section"):
            self.block = "code"
            return f"/// <tt>{escaped(text.strip()).replace('  ', '&nbsp; ')}</tt><br>"
        if indent < 3:
            self.block = "text"
            return f"/// {escaped(text.strip())}"
        return f"///     {escaped(text.strip())}"


def self_test():
    cases = [
        ("// Reads @file of a <name>.", "/// Reads \\@file of a \\<name\\>."),
        ("  int x = 0;  // of `unit`,\n              // see ::y", "  int x = 0;  ///< of <code>unit</code>,\n              ///< see \\::y"),
        ("// Errors   UsageError if\n//          it is there.\nvoid f();", "/// <p><b>Errors</b> UsageError if\n///     it is there.\nvoid f();"),
        ("// Either:\n//   1. this\n//   2. that", "/// Either:\n///   -# this\n///   -# that"),
        ("struct A {  // a pair\n};", "/** a pair */ struct A {\n};"),
        ("// A list.\ntemplate <typename T>\nclass B : C {", "/// A list.\ntemplate <typename T>\nclass B : C {"),
        ("namespace a::detail {\nstruct D {\n};", "namespace a::detail {\nstruct D {\n};"),
        ('constexpr auto kUrl = "http://a, // b";', 'constexpr auto kUrl = "http://a, // b";'),
    ]
    wrong = []
    for text, expected in cases:
        comments = Comments()
        got = "\n".join(comments.copied(text.split("\n")))
        wrong += [f"{text!r}: {got!r}, expected {expected!r}"] if got != expected or comments.bare else []
    for text in ("struct A {", "enum class B : int {", "class C;\n\nclass D final : public C {"):
        comments = Comments()
        list(comments.copied(text.split("\n")))
        wrong += [f"{text!r}: no class without a comment found"] if len(comments.bare) != 1 else []
    print("\n".join(wrong) or f"api_comments: {len(cases) + 3} cases are right")
    return 1 if wrong else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    out = pathlib.Path(sys.argv[1])
    bare = 0
    for header in sys.argv[2:]:
        comments = Comments()
        written = out / header
        written.parent.mkdir(parents=True, exist_ok=True)
        lines = pathlib.Path(header).read_text(encoding="utf-8").split("\n")
        written.write_text("\n".join(comments.copied(lines)), encoding="utf-8")
        for index, name in comments.bare:
            print(f"{header}:{index + 1}: {name} has no comment", file=sys.stderr)
            bare += 1
    return 1 if bare else 0


if __name__ == "__main__":
    sys.exit(main())
