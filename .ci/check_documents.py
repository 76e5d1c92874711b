#!/usr/bin/env python3
"""Checks what documents and comments point to: links, headings, files, names and keys exist, and no file cites what is outside of the repository.
What has run on which hardware is in one document, whose sentences the others quote (document_names.py).

    check_documents.py [ROOT]       prints every violation as file:line, exit 1 if there is one
    check_documents.py --self-test  a tree with one violation of each kind must be found out
    check_documents.py --words [REVISION]  prints the words of each document, and how many it had in that revision of git
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import checking
import document_names

LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|\!\[[^\]]*\]\(([^)\s]+)\)|<img[^>]* src=\"([^\"]+)\"")
CODE = re.compile(r"`([^`]+)`")
TOP = ("core", "profiler", "sim", "gui", "cli", "tests", "bench", "scripts", "docs", "cmake", "traces", "examples", ".ci")
PATH = re.compile(r"(?<![\w./-])((?:%s)/[\w./-]*\w)(?![\w/]*[*{<…])" % "|".join(re.escape(t) for t in TOP))
OUTSIDE = re.compile(r"\.\./shared|(?<![\w/.-])design(?:_next)?\.md|(?<!docs/)(?<![\w(])shared/(?:design|schedule|knowledge|seeds|traces|reference)")
# Files of C++ that a comment names, with or without folders. Those of other projects are in comments that name the project, or a Source.
COMMENT = re.compile(r"(?<![:\"])//(?!/)(.*)$")
NAMED_FILE = re.compile(r"(?<![\w./<-])((?:[\w-]+/)*[\w-]+\.(?:h|cpp))\b(?!\.)")
ELSEWHERE = re.compile(r"Source\b|torch|Kineto|NCCL|CUPTI", re.I)
SOURCES = (".h", ".cpp", ".py", ".md", ".txt", ".cmake", ".sh", "")
SKIPPED = {"build", "out", ".git", "data"}


def anchors(document):
    """The anchors of a document's headings, as GitHub makes them."""
    found, fenced = set(), False
    for line in document.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        if not fenced and line.startswith("#"):
            title = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip())
            found.add(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"))
    return found


def check_links(root, document):
    path = document.relative_to(root).as_posix()
    fenced = False
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
            continue
        if fenced:
            continue
        for match in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
            target = next(group for group in match.groups() if group)
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            at = (document.parent / file).resolve() if file else document
            if not at.exists():
                yield f"{path}:{number}: the link {target} leads nowhere"
            elif anchor and at.suffix == ".md" and anchor not in anchors(at):
                yield f"{path}:{number}: {file or path} has no heading #{anchor}"
        for code in CODE.findall(line):
            for named in PATH.findall(code):
                if not (root / named).exists() and not list(root.glob(named + ".*")):
                    yield f"{path}:{number}: there is no {named}"


def check_comments(path, text, known):
    """Names of C++ files in comments; `known`: every file of the repository, by its path and by the ends of its path."""
    block, last = [], 0
    for number, line in [*enumerate(text.splitlines(), 1), (0, "")]:
        comment = COMMENT.search(line)
        if block and not (comment and number == last + 1):
            elsewhere = ELSEWHERE.search(" ".join(words for _, words in block))
            for at, words in block:
                for named in NAMED_FILE.findall(words):
                    if named not in known and not elsewhere:
                        yield f"{path}:{at}: there is no {named}"
            block = []
        if comment:
            block.append((number, comment.group(1)))
            last = number


def ends_of_paths(root):
    found = set()
    for file in root.glob("**/*"):
        if file.suffix in (".h", ".cpp") and not SKIPPED & set(file.relative_to(root).parts):
            parts = file.relative_to(root).parts
            found.update("/".join(parts[start:]) for start in range(len(parts)))
    return found


# Words of a question that say nothing about its subject.
PLAIN_WORDS = set("a an and are as be become by can do does for from give have how in is it its of on or so that the there to what when which who why".split())


def is_named_in(file, question):
    """Whether the file's name has a word of the question, in any form of it: "reduced" and reduce.cpp, "recorded" and recorder.py."""
    asked = [word.rstrip("s") for word in re.findall(r"[a-z0-9]{3,}", question.lower()) if word not in PLAIN_WORDS]
    named = [word.rstrip("s") for word in file.rpartition("/")[2].rpartition(".")[0].split("_")]
    return any(one.startswith(other[:max(5, len(other) - 1)]) for word in asked for name in named for one, other in ((word, name), (name, word)))


def check_questions(root, document):
    """The list below "Thirty questions": its files exist, and the sentence above it counts right how many are named like their questions."""
    path = document.relative_to(root).as_posix()
    heading = "## Thirty questions"
    lines = document.read_text(encoding="utf-8").splitlines()
    if heading not in lines:
        return
    start, counted, right, stated = lines.index(heading), 0, 0, None
    for number, line in enumerate(lines[start + 1:], start + 2):
        if line.startswith("## "):
            break
        stated = stated or re.search(r"(\d+) of (\d+)", line)
        row = re.fullmatch(r"- (.*\?) `([^`]+)`", line)
        if row:
            counted += 1
            right += is_named_in(row[2], row[1])
            if not (root / row[2]).is_file():
                yield f"{path}:{number}: there is no {row[2]}"
    if stated is None or (int(stated[1]), int(stated[2])) != (right, counted):
        yield f"{path}:{start + 1}: {right} of {counted} files have a word of their question in their name, not {stated[0] if stated else 'unstated'}"


def check_names(root, documents, words, literals):
    """Checks what the pages for users and developers name; `words` of all sources, and their `literals`."""
    schemas = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(root.glob("docs/schemas/*.json"))}
    keys = set().union(*(document_names.keys_of(schema) for schema in schemas.values()))
    files = {file.name for file in root.glob("**/*") if file.suffix in (".h", ".cpp", ".py")}
    quoted = document_names.quoted_states(root)
    for document, text in documents:
        path = document.relative_to(root).as_posix()
        yield from document_names.names(path, text, words | literals | keys, files, keys)
        yield from document_names.outputs(path, text, schemas)
        if "plan_file" in schemas:
            yield from document_names.plans(path, text, schemas["plan_file"])
        yield from document_names.state_table(path, text) if path == document_names.STATES else document_names.states(path, text, quoted)


MOST_WORDS = 45_000  # of all documents together, as `wc -w` counts them: blocks of code and bars of tables are words


def violations(root, most_words=MOST_WORDS):
    known = ends_of_paths(root)
    documents, words, literals = [], set(), set()
    for file in sorted(root.glob("**/*")):
        relative = file.relative_to(root)
        if not file.is_file() or SKIPPED & set(relative.parts) or file.suffix not in SOURCES or relative.name == "check_documents.py":
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if outside := OUTSIDE.search(line):
                yield f"{relative.as_posix()}:{number}: cites {outside.group()}, which is not in the repository"
        if file.suffix == ".md":
            yield from check_links(root, file)
            yield from check_questions(root, file)
            if relative.parts[0] == "docs" or relative.as_posix() in ("README.md", "CONTRIBUTING.md"):
                documents.append((file, text))
            continue
        words.update(document_names.words_of(text))
        literals.update(re.findall(r'"([A-Za-z_]\w*)\\?"', text))
        if file.suffix in (".h", ".cpp"):
            yield from check_comments(relative.as_posix(), text, known)
    yield from check_names(root, documents, words, literals)
    count = sum(len(text.split()) for _, text in documents)
    if count > most_words:
        yield f"docs: {count} words in all documents, at most {most_words} are wanted"


def print_words(root, revision=None):
    """Words of each document as `wc -w` counts them, the longest first; with a revision also the words that it had there."""
    now = {file.relative_to(root).as_posix(): len(file.read_text(encoding="utf-8").split())
           for file in [root / "README.md", root / "CONTRIBUTING.md", *root.glob("docs/**/*.md")]}
    before = {}
    if revision:
        git = ["git", "-C", str(root)]
        files = subprocess.run([*git, "ls-tree", "-r", "--name-only", revision, "README.md", "CONTRIBUTING.md", "docs"], check=True, capture_output=True, text=True)
        for path in files.stdout.split():
            if path.endswith(".md"):
                before[path] = len(subprocess.run([*git, "show", f"{revision}:{path}"], check=True, capture_output=True, text=True).stdout.split())
    total = {path: (now.get(path, 0), before.get(path, 0)) for path in {**now, **before}}
    for path, (words, earlier) in sorted(total.items(), key=lambda row: (-row[1][0], row[0])):
        print(f"{earlier:7} {words:7}  {path}" if revision else f"{words:7}  {path}")
    pages, sums = len(now), [sum(column) for column in zip(*total.values())]
    print(f"{sums[1]:7} {sums[0]:7}  {len(before)} pages then, {pages} now" if revision else f"{sums[0]:7}  {pages} pages, at most {MOST_WORDS} words")
    return 0


def self_test():
    cases = {
        "docs/link.md": "[there](absent.md)",
        "docs/anchor.md": "[there](good.md#no-such)",
        "docs/path.md": "see `core/absent.cpp`",
        "core/comment.h": "int a;  // as absent_name.cpp\n// as in base.h\n",
        "core/folder.cpp": "// sim/base.h has it",
        "docs/questions.md": "## Thirty questions\nIn 2 of 2 …\n- What is reduced? `core/reduce.h`\n- Who gathers? `core/storage.h`\n",
        "docs/identifier.md": "it is `step_` and `absent_identifier`",
        "docs/file.md": "see `absent.py`",
        "docs/key.md": "`{\"version\": 1, \"absent\": 2}` is printed",
        "docs/removed_key.md": "`{\"removed\": 1}`",  # a source has the word, no schema has the key
        "docs/removed_member.md": "## show\nWith `--json`, in ns:\n\n- `step_ns`, `kind`: `best`\n- `removed_ns`: ...\n\nOr `removed_ns`.",
        "docs/json.md": "```json\n{\"unknown_key\": 1}\n```",
        "docs/plan_key.md": "```sh\necho '{\"version\": 1, \"units\": [{\"modules\": \"a\", \"prefetch\": 1}]}'\n```",
        "docs/state.md": "NCCL between several GPUs has run.",
        "core/cites.h": "// as des" + "ign.md has it",
        "tests/outside.py": 'TRACES = "../sha' + 'red/traces"',
    }
    good = {"docs/good.md": "# A heading: `x`\n[here](#a-heading-x) `core/base.h` `core/*.h`\n```\n[no](link)\n```", "core/base.h": "// docs/good.md", "core/reduce.h": "", "core/storage.h": "",
            "docs/asked.md": "## Thirty questions\nIn 1 of 2 …\n- What is reduced? `core/reduce.h`\n- Who gathers? `core/storage.h`\n",
            "docs/names.md": "`step_ns` of `base.h`; `{\"step_ns\": 3}`\n```json\n{\"version\": 1, \"units\": [{\"modules\": \"a\"}]}\n```\nThe *engine* has run on CPUs and one GPU. Then it ends.",
            document_names.STATES: "| state | evidence |\n|---|---|\n| The engine has run on CPUs and one [GPU](../good.md). | [report](../good.md) |\n| NCCL between several GPUs has not run yet. | none |\n",
            "docs/schemas/plan_file.json": '{"properties": {"version": {}, "units": {"items": {"$ref": "#/$defs/Unit"}}}, "additionalProperties": false, '
                                           '"$defs": {"Unit": {"properties": {"modules": {}}, "additionalProperties": false}}}',
            "docs/schemas/show.json": '{"properties": {"step_ns": {}, "kind": {"enum": ["best"]}}}',
            "core/step.cpp": 'print("step_ns", "removed", "removed_ns", "unknown" "_key");',
            "core/plan/named.h": "// base.h, core/base.h and plan/named.h\nauto url = \"https://a/b.h\";\n// Source  torch 2.11\n//         engine.cpp, autograd/function.h\n"}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in {**good, **cases}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        found = list(violations(root))
        long = [line for line in violations(root, most_words=10) if line.startswith("docs:")]
    if len(long) != 1:
        print("self-test: too many words were not found")
        return 1
    if sorted(line.split(":")[0] for line in found) != sorted(cases):
        print("self-test: found\n  " + "\n  ".join(found) + "\nexpected one violation in each of\n  " + "\n  ".join(sorted(cases)))
        return 1
    print(f"check_documents self-test: {len(cases)} violations found, {len(good)} clean files passed")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--words"] and len(sys.argv) <= 3:
        sys.exit(print_words(pathlib.Path(__file__).resolve().parent.parent, *sys.argv[2:]))
    sys.exit(checking.run("check_documents", violations, self_test, "links and paths of the documents, and files that comments name, exist"))
