"""``hf-posenc explain``: short lessons on positional encodings, measured on small models."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson, words_of
from hf_posenc.cli.bad_argument import BadArgument

if TYPE_CHECKING:
    from hf_posenc.insight.lessons import LessonResult

COLUMNS = 100


def explain(
    name: Annotated[
        str | None, Argument(help="Lesson to run; without one, all lessons are listed.", metavar="[LESSON]")
    ] = None,
    scheme: Annotated[
        list[str] | None,
        Option(
            "--scheme",
            "-s",
            help="Schemes to run it on, as in rope,alibi; may be repeated. Not every lesson takes any.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain positional encodings by small experiments.

    Each lesson runs in seconds on small models, prints its measurements and draws a conclusion from them.
    """
    from hf_posenc.insight.lessons import list_lessons

    if name is None:
        if scheme:
            raise BadArgument("--scheme belongs to a lesson, and none is named. Name one, as in hf-posenc explain dog.")
        rows = [(lesson.name, lesson.title, lesson.schemes) for lesson in list_lessons()]
        if as_json:
            output.show_json([{"topic": name, "title": title, "schemes": schemes} for name, title, schemes in rows])
        else:
            output.show_table(("lesson", "question", "schemes"), rows)
        return
    from hf_posenc.insight.lessons import explain as run

    with output.other_bars_off():
        finding = run(name, words_of(scheme))
    if as_json:
        output.show_json(finding.to_dict())
    else:
        show(finding)


def show(finding: LessonResult) -> None:
    """Show what the lesson does, its tables and its conclusion."""
    output.show_text(finding.title + "\n\n" + fill(finding.shows, COLUMNS) + "\n")
    for table in finding.tables:
        output.show_table(table.columns, table.rows, title=table.title or None)
        output.show_text("")
    output.show_text(fill(finding.conclusion, COLUMNS))
