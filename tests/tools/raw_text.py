"""Which characters and words of an output a terminal, a CI runner or Markdown would obey. Written from Unicode's and the runners' own rules, and
not from the program's tables."""
import re
import unicodedata

# GitHub's runner: "::name" in front of a line, "##[name]" anywhere; Azure's: "##vso[" anywhere; TeamCity's: "##teamcity[".
RUNNER = re.compile(r"^\s*::|##\[|##vso\[|##teamcity\[", re.I)
# What Markdown, or GitHub or GitLab after it, makes a link, a picture, HTML, a mention or a reference of.
MARKDOWN = re.compile(r"(?<!\\)\]\(|<[a-z/!]|\w+://|\bwww\.|@\w|(?<!&)#\d|!\d|\bGH-\d", re.I)
INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")


def raw_characters(text):
    """The characters of one line that change how a terminal shows the text after it, or that nobody sees."""
    return {f"U+{ord(char):04X}" for char in text if unicodedata.category(char) in INVISIBLE or 0xE0000 <= ord(char) <= 0xE0FFF}


def raw_in(output, markdown=False):
    """The raw parts of an output's bytes: characters, bytes that are not UTF-8, lines that begin a runner's command; in Markdown also links."""
    found = set()
    try:
        text = output.decode("utf-8")
    except UnicodeDecodeError as error:
        found.add(f"byte {output[error.start]:02x}")
        text = output.decode("utf-8", "replace")
    for line in text.split("\n"):
        found |= raw_characters(line)
        command = RUNNER.search(line)
        if command:
            found.add(f"a runner's {command.group().strip()!r}")
        link = MARKDOWN.search(line) if markdown else None
        if link:
            found.add(f"Markdown's {link.group()!r}")
    return found
