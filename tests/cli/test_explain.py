"""``hf-posenc explain``: the list, a demonstration, and refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from hf_posenc.insight.lessons import all_lessons, list_lessons


def test_without_a_topic_all_are_listed(call: Callable) -> None:
    out = call("explain").out
    assert all(any(line.split()[0] == name for line in out.splitlines() if line.strip()) for name in all_lessons())
    assert {row["topic"] for row in call("explain", "--json").data} == set(all_lessons())


def test_listing_imports_no_torch() -> None:
    program = (
        "import sys; from hf_posenc.cli import main\n"
        "try: main(['explain'])\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert "dog" in done.stdout


def test_what_is_listed_is_what_is_registered() -> None:
    assert [(one.name, one.title, one.schemes) for one in list_lessons()] == [
        (one.name, one.title, one.schemes) for one in all_lessons().values()
    ]


def test_a_topic_prints_method_and_result(call: Callable) -> None:
    answer = call("explain", "dog", "--scheme", "rope,kerple")
    assert answer.code == 0, answer.err
    assert "the dog chased another dog" in answer.out
    assert "both dogs are one under none" in " ".join(answer.out.split())
    assert any(line.split()[:3] == ["bert", "(encoder)", "kerple"] for line in answer.out.splitlines())


def test_as_json(call: Callable) -> None:
    data = call("explain", "permutation", "--json").data
    assert data["topic"] == "permutation"
    assert data["tables"][0]["rows"][0][0] == "none"
    assert data["conclusion"].startswith("Outputs follow the words under none")


def test_refusals_end_with_2(call: Callable) -> None:
    answer = call("explain", "dogs")
    assert answer.code == 2
    assert "Did you mean 'dog'?" in answer.err
    assert call("explain", "dog", "--scheme", "roep").code == 2
    assert call("explain", "readers", "--scheme", "rope").code == 2
    answer = call("explain", "--scheme", "rope")
    assert (answer.code, answer.out) == (2, "")
    assert "--scheme belongs to a lesson" in answer.err


def test_help_ends_with_examples(call: Callable) -> None:
    lines = call("explain", "--help").out.rstrip().splitlines()
    examples = lines[lines.index("  Examples:") + 1 :]
    assert examples
    assert all(line.strip().startswith("hf-posenc explain") for line in examples)
