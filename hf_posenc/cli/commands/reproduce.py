"""``hf-posenc reproduce``: run published findings again, with a verdict from paired intervals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from traceback import format_exception
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Exit, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson, check_unread, is_debugging
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.errors import FAILED, PARTLY, message_of, was_interrupted
from hf_posenc.cli.output_paths import check_output_folder
from hf_posenc.cli.text_arguments import FIELD, DocumentSeparator, Text, TextField, check_reading, text_source

if TYPE_CHECKING:
    from hf_posenc.insight.findings import Finding, Judged, Reproduction

COLUMNS = 110
OF_RUNS = ("quick", "folder", "model", "text", "text_field", "document_separator", "seeds", "samples")


def reproduce(
    context: Context,
    names: Annotated[list[str] | None, Argument(help="Findings to run; see --list.", metavar="[NAME]...")] = None,
    every: Annotated[bool, Option("--all", help="Run all findings.")] = False,
    listed: Annotated[bool, Option("--list", help="List the findings and run none.")] = False,
    quick: Annotated[bool, Option("--quick", help="Use a smaller budget, which every output says.")] = False,
    folder: Annotated[
        Path | None,
        Option(
            "--out",
            help="Folder of the results; of several findings, each has a folder of its own in it. Default: "
            "results/findings, or results/findings-quick.",
        ),
    ] = None,
    model: Annotated[
        str | None, Option("--model", "-m", help="Run on this model, instead of the finding's own: folder or name.")
    ] = None,
    text: Text = None,
    text_field: TextField = FIELD,
    document_separator: DocumentSeparator = None,
    seeds: Annotated[
        int | None,
        Option(
            min=2, help="Trainings of each variant from random weights; default: the budget's. Stored ones are kept."
        ),
    ] = None,
    samples: Annotated[int | None, Option(min=2, help="Documents; default: the budget's.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run published findings again: reproduced, not reproduced, or not decidable at this size.

    Each finding is a list of claimed orders, decided by paired differences over documents, corrected for their number.
    Raw cells are stored as they are measured: the same command resumes, and costs nothing when all are there. What is
    undecided may be decided with more --seeds or --samples. The exit code says whether the findings ran, not what their
    verdict is.
    """
    from hf_posenc.insight.findings import all_findings

    known = all_findings()
    if listed and (names or every):
        raise BadArgument("--list runs nothing. Leave it out, or leave out the findings and --all.")
    if listed:
        check_unread(context, OF_RUNS, "has no effect beside --list, which runs nothing. Leave one out.")
        show_list(list(known.values()), as_json)
        return
    if bool(names) == every:
        raise BadArgument("Name the findings to run, or pass --all. `hf-posenc reproduce --list` lists them.")
    check_reading(text, text_field, document_separator)
    given = text_source(text, text_field, document_separator)
    chosen = list(known) if every else list(dict.fromkeys(names or ()))
    alone = len(chosen) == 1 and not every
    places = {name: folder if folder is None or alone else folder / name for name in chosen}
    for place in filter(None, places.values()):
        check_output_folder("--out", place)
    settings = {"quick": quick, "model": model, "text": given, "seeds": seeds, "samples": samples}
    results, failed = run_each(places, settings)
    if as_json:
        shown: list[dict[str, Any]] = [result.to_dict() for result in results]
        output.show_json(shown[0] if alone else shown)
    else:
        for result in results:
            show(result)
    for name, error in failed.items():
        if is_debugging(context):
            output.note("".join(format_exception(error)))
        output.fail(f"{name}: {message_of(error)}")
    if failed:
        raise Exit(PARTLY if results else FAILED)


def run_each(
    places: Mapping[str, Path | None], given: Mapping[str, Any]
) -> tuple[list[Reproduction], dict[str, Exception]]:
    """Run findings one after the other, each with a folder of its own; the results, and why others have none.

    Whatever one raises, out of memory or a defect of its own, the verdicts of the others stand: all of them take hours.

    Raises:
        Exception: of a finding that runs alone.
        PosEncError: one does not take these settings.
    """
    from hf_posenc.insight.findings import reproduce as run
    from hf_posenc.insight.findings.catalogue import finding_named
    from hf_posenc.insight.findings.run import check_taken

    for name in places:  # refused now, and not after the ones before have run
        finding = finding_named(name)
        check_taken(finding, given["model"], given["text"])
        finding.given(given["quick"], given["seeds"], given["samples"])
    results, failed = [], {}
    with output.progress() as progress:
        for number, (name, place) in enumerate(places.items()):

            def report(done: float | None, doing: str, before: int = number, what: str = name) -> None:
                progress((before + (done or 0.0)) / len(places), f"{what}: {doing}")

            try:
                results.append(run(name, out=place, progress=report, **given))
            except Exception as error:
                if len(places) == 1 or was_interrupted(error):
                    raise
                failed[name] = error
    return results, failed


def show_list(findings: list[Finding], as_json: bool) -> None:
    """Show name, claim and source of all findings."""
    rows = [(one.name, one.claim, one.source) for one in findings]
    if as_json:
        output.show_json([dict(zip(("name", "claim", "source"), row, strict=True)) for row in rows])
    else:
        output.show_table(("finding", "claim", "source"), rows)


def show(result: Reproduction) -> None:
    """Show the claims with their intervals, and the verdict."""
    from hf_posenc.insight.findings.claims import in_words

    finding = result.finding
    output.show_text(f"{finding.name}{' (quick budget)' if result.quick else ''}\n{fill(finding.claim, COLUMNS)}")
    output.show_text(f"Source: {finding.source}\n")
    shown = [("needed: ", one) for one in result.needed] + [("", one) for one in result.judged]
    rows = [(kind + in_words(one.claim, finding.point_format), *numbers(one), one.outcome) for kind, one in shown]
    output.show_table(("claim", "gain", "95 % interval", "n", "outcome"), rows)
    output.show_text(f"\nVerdict: {result.verdict}, {result.budget} budget, {result.cpu_seconds:.0f} s of CPU time")
    if finding.limits:
        output.show_text(fill(finding.limits, COLUMNS))


def numbers(judged: Judged) -> tuple[str, str, int]:
    """Gain, interval and count of documents of a claim."""
    from hf_posenc.insight.findings.claims import signed

    bounds = [signed(bound) for bound in (judged.low, judged.high) if bound is not None]
    return signed(judged.gain), " … ".join(bounds), judged.documents
