"""Text for people has no untrusted string raw."""
import pickle
import subprocess
import sys

import pytest

from shardlens import answers, run
from shardlens.program import ShardlensError
from shardlens.shown import shown, shown_lines


@pytest.mark.parametrize("text, expected", [
    ("größe 名前 🙂 ⚠️ a: b::c #1", "größe 名前 🙂 ⚠️ a: b::c #1"),
    ("a\x1b[31m\r\n\t\x7f", "a\\x1b[31m\\r\\n\\t\\x7f"),
    ("a\u202eb\u200b\xad\u2028\x85", "a\\u{202e}b\\u{200b}\\u{ad}\\u{2028}\\u{85}"),
    ("\U000e0041\U000e0100\u3164", "\\u{e0041}\\u{e0100}\\u{3164}"),
    ("a\udcff", "a\\xff"),  # a byte of a file's name that is not UTF-8
    ("::error::x", "\\x3a:error::x"),
    (" \u3000::error::x", " \u3000\\x3a:error::x"),
    ("a ##vso[task.x] ##[error]", "a #\\x23vso[task.x] #\\x23[error]"),
])
def test_a_string_is_one_line_that_steers_nothing(text, expected):
    assert shown(text) == expected
    assert shown(expected) == expected


def test_an_error_is_one_line_unless_it_says_that_it_has_several():
    assert str(ShardlensError("a\n::error::b", 3)) == "a\\n::error::b"
    error = ShardlensError("a\n::error::b", 3, lines=True)
    assert str(error) == "a\n\\x3a:error::b"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert shown_lines("a\r\nb") == "a\\r\nb"


def test_answers_and_words_show_names_escaped():
    assert answers.fitted(["unit a\n::error::b"], [["analyze", "x\x1b"]]).splitlines() == ["unit a\\n::error::b", "evidence: shardlens analyze 'x\\x1b'"]
    details = {"verdict": "regression", "causes": ["unit a\n\u202eb"], "reason": "", "metrics": [], "memory": [], "attribution": []}
    assert run.Verdict(details).words() == "regression; unit a\\n\\u{202e}b"


def test_the_command_prints_its_message_escaped():
    done = subprocess.run([sys.executable, "-m", "shardlens.export", "--hf", "x", "--out", "no\n::error::such/y"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "error: --out no\\n::error::such/y: no\\n::error::such is not a folder\n" in done.stderr
