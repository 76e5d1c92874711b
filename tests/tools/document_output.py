"""Blocks of commands in a document, and the output that the document shows for them.

A ```text block right below a ```sh block, with only empty lines between, is what its commands print: every line, with any spaces. In it

    …               as a line: any lines, or none; in a line: any text
    ~12.3           a number that varies: any number
    <!-- numbers vary -->    in the line above the block: so does every number in it
"""
import dataclasses
import itertools
import re

NUMBER = r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?"
VARY = "<!-- numbers vary -->"


@dataclasses.dataclass
class Block:
    line: int
    commands: str
    needs: str  # "" or what the block needs, separated by spaces
    output: str = None
    output_line: int = 0
    numbers_vary: bool = False


def blocks(text):
    """The blocks of shell commands, each with its output."""
    found, language, start, below, vary = [], None, 0, False, False
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        word = line.strip()
        if language is None and word.startswith("```"):
            language, start = word.strip("`"), number
            below = below and language == "text"
        elif language is not None and word == "```":
            content = lines[start:number - 1]
            if language == "sh":
                first = content[0].strip() if content else ""
                found.append(Block(start + 1, "\n".join(content), first.removeprefix("# needs:").strip() if first.startswith("# needs:") else ""))
            elif below:
                found[-1].output, found[-1].output_line, found[-1].numbers_vary = "\n".join(content), start + 1, vary
            below, vary, language = language == "sh", False, None
        elif language is None and word == VARY:
            vary = True
        elif language is None and word:
            below = vary = False
    return found


def pattern(line, numbers_vary):
    """A pattern that matches a line, without the spaces at its ends."""
    out = []
    for part in re.split(rf"(…|~{NUMBER}|{NUMBER}|\s+)", line.strip()):
        if part == "…":
            out.append(".*")
        elif part.startswith("~") and len(part) > 1 or numbers_vary and re.fullmatch(NUMBER, part):
            out.append(NUMBER)
        else:
            out.append(r"\s+" if part.isspace() else re.escape(part))
    return "".join(out)


def filled(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def places(expected, printed, numbers_vary):
    """(the index in `printed` of each line of `expected`, None for a gap; "") or (None, what is wrong)."""
    chunks = [[]]
    for line in expected:
        if line == "…":
            chunks.append([])
        else:
            chunks[-1].append(line)
    found, at = [], 0
    for number, chunk in enumerate(chunks):
        patterns = [re.compile(pattern(line, numbers_vary)) for line in chunk]
        begins = [0] if number == 0 else range(at, len(printed) - len(chunk) + 1)
        if number == len(chunks) - 1 and number > 0 and not chunk:
            begins = [len(printed)]  # a gap at the end
        best = 0
        for begin in begins:
            right = sum(1 for _ in itertools.takewhile(lambda pair: pair[0].fullmatch(pair[1]), zip(patterns, printed[begin:])))
            at_the_end = number < len(chunks) - 1 or begin + len(chunk) == len(printed)
            if right == len(chunk) and at_the_end:
                break
            best = max(best, right)
        else:
            more = best == len(chunk)
            return None, "nothing more is shown, but the commands print more" if more else f"not printed: {chunk[best]}"
        found += ([None] if number else []) + list(range(begin, begin + len(chunk)))
        at = begin + len(chunk)
    return found, ""


def difference(expected, printed, numbers_vary):
    """The first line of the document that is not printed, in words; None: everything is as it says."""
    found, wrong = places(filled(expected), filled(printed), numbers_vary)
    return None if found is not None else f"{wrong}\nprinted:\n{printed[:3000]}"


def updated(expected, printed):
    """What the document should show, if only numbers changed; None: other words changed, too. Lines with marks stay."""
    lines = [line for line in printed.splitlines() if line.strip()]
    found, _ = places(filled(expected), filled(printed), True)
    if found is None:
        return None
    indices = iter(found)
    out = []
    for line in expected.splitlines():
        index = next(indices) if line.strip() else None
        stays = index is None or "…" in line or "~" in line or re.fullmatch(pattern(line, False), lines[index].strip())
        out.append(line if stays else lines[index].rstrip())
    return "\n".join(out)
