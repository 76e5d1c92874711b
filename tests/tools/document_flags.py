"""Subcommands and flags that documents name, compared with the help of the programs."""
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
# Where flags of scripts and of the tests' tools are.
SCRIPTS = ("scripts", "tests", "bench", "python", ".ci", "cli", "gui")
# Verbs of `checkpoint`, which documents name by themselves.
VERBS = ("convert", "merge")
# Flags of other programs, which documents name without a command around them.
ELSEWHERE = {"--allow-unrelated-histories", "--no-python", "--prefix"}


def of_programs(binaries):
    """{subcommand: flags}, and for None those of everything in the repository."""
    program = binaries / "shardlens"

    def help_of(*words):
        return subprocess.run([program, *words], capture_output=True, text=True, check=True, timeout=60).stdout

    flags = {}
    for name in re.findall(r"^  ([a-z]+)  ", help_of("--help"), re.M):
        flags[name] = set(FLAG.findall(help_of("help", name)))
    everything = set().union(*flags.values(), ELSEWHERE)
    for folder in SCRIPTS:
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".py", ".cpp", ".h", ".sh", "") and "data" not in file.parts and file.is_file():
                everything.update(FLAG.findall(file.read_text(encoding="utf-8", errors="replace")))
    flags["help"] = set()
    flags[None] = everything
    return flags


def commands(text):
    """(line number, command) of each shardlens in code; a command that goes on in indented lines or after a backslash is one."""
    language, command, start = None, "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("```"):
            if command:
                yield start, command
            language, command = (line.strip().strip("`") if language is None else None), ""
        elif language in ("sh", "text", "yaml"):
            goes_on = command.endswith("\\") or language == "text" and line.startswith("  ")
            if command and goes_on:
                command = command.rstrip("\\") + " " + line.strip()
                continue
            if command:
                yield start, command
            command, start = (line.strip(), number) if "shardlens" in line else ("", 0)
        elif language is None:
            for code in re.findall(r"`([^`\n]+)`", line):
                yield number, code


def unknown(path, text, flags):
    """Subcommands and flags that do not exist."""
    for number, command in commands(text):
        for part in re.split(r"&&|\|\||;|\$\(| \| (?=[a-z])", command) if "[" not in command else [command]:
            match = re.search(r"(?:^|[/\s\"])shardlens ([a-z]+)(?=\s|$)(.*)", part)
            bare = re.match(r"([a-z]+)\s(?=.*--)(.*)", part)
            if match:
                name, rest = match.groups()
                if name not in flags:
                    yield f"{path}:{number}: there is no subcommand {name}: {part.strip()}"
                    continue
            elif bare and bare[1] in flags:
                name, rest = bare.groups()
            elif part == command and part.startswith("--"):
                name, rest = None, part
            else:
                continue
            for flag in FLAG.findall(re.sub(r'"[^"]*"', "", rest)):
                if flag not in flags[name] and not (bare and name in VERBS and flag in flags["checkpoint"]):
                    yield f"{path}:{number}: {name} has no {flag}" if name else f"{path}:{number}: nothing has {flag}"
