"""``hf-posenc explain``: demonstrations that print what they find."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson, words_of

if TYPE_CHECKING:
    from hf_posenc.insight.lessons import Finding

COLUMNS = 100


def explain(
    name: Annotated[
        str | None, Argument(help="A topic; without one, all of them are listed.", metavar="[TOPIC]")
    ] = None,
    scheme: Annotated[
        list[str] | None,
        Option(
            "--scheme", "-s", help="Show it on these instead: rope,alibi; may be repeated. Not all topics take any."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what positional encodings are about.

    Each demonstration runs in seconds on small models, prints its numbers, and concludes from them.
    """
    from hf_posenc.insight.lessons import explain as run
    from hf_posenc.insight.lessons import topics

    if name is None:
        rows = [(topic.name, topic.title, topic.schemes) for topic in topics().values()]
        if as_json:
            output.show_json([{"topic": name, "title": title, "schemes": schemes} for name, title, schemes in rows])
        else:
            output.show_table(("topic", "question", "schemes it is shown on"), rows)
        return
    with output.other_bars_off():
        finding = run(name, words_of(scheme))
    if as_json:
        output.show_json(finding.to_dict())
    else:
        show(finding)


def show(finding: Finding) -> None:
    """What is done, the numbers, and what they say."""
    output.show_text(finding.title + "\n\n" + fill(finding.shows, COLUMNS) + "\n")
    for table in finding.tables:
        output.show_table(table.columns, table.rows, title=table.title or None)
        output.show_text("")
    output.show_text(fill(finding.conclusion, COLUMNS))
