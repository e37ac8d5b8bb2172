"""Names, questions and schemes of the lessons, read off their decorators: listing them imports no torch.

The arguments of `register_lesson` are literals, as those of `hf_posenc.schemes.registry.register_scheme` are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hf_posenc.insight.lessons.registry import registered_lessons

FOLDER = Path(__file__).parent / "demonstrations"
DECORATOR = "register_lesson"


@dataclass(frozen=True)
class ListedLesson:
    """A lesson in a list.

    Attributes:
        name: one word.
        title: the question it answers.
        schemes: schemes it runs on by default; empty for a lesson that takes none.
    """

    name: str
    title: str
    schemes: tuple[str, ...]


def list_lessons() -> list[ListedLesson]:
    """All lessons, sorted by name; those that others have registered are among them."""
    found = {one.name: one for file in sorted(FOLDER.glob("*.py")) for one in lessons_in(file)}
    others = {one.name: ListedLesson(one.name, one.title, one.schemes) for one in registered_lessons().values()}
    return [one for _, one in sorted({**found, **others}.items())]


def lessons_in(file: Path) -> Iterator[ListedLesson]:
    """The lessons that a file registers."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for call in getattr(node, "decorator_list", ()):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == DECORATOR:
                name, title = (ast.literal_eval(argument) for argument in call.args)
                given = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
                yield ListedLesson(name, title, given.get("schemes", ()))
