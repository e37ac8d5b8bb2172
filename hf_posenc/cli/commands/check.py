"""``hf-posenc check``: measure all checks on a user's own model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Context, Exit

from hf_posenc.cli import arguments as cli
from hf_posenc.cli import output
from hf_posenc.cli.errors import CONTRACT
from hf_posenc.cli.global_options import DEBUG, BadArgument

if TYPE_CHECKING:
    from hf_posenc.checks import Deviation

COLUMNS = ("check", "passes", "deviation", "tolerance", "worst at")


def check(
    context: Context,
    model: cli.Model,
    scheme: cli.OwnScheme = None,
    factor: cli.Factor = None,
    target_length: cli.TargetLength = None,
    trained_length: cli.TrainedLength = None,
    option: cli.SchemeOptions = None,
    checks: Annotated[
        list[str] | None,
        cli.of_measurement(
            "--checks",
            "-c",
            metavar="CHECKS",
            help="Names of checks in the table, separated by commas; may be repeated; default: all.",
        ),
    ] = None,
    base: cli.Base = None,
    as_json: cli.AsJson = False,
) -> None:
    """Check a scheme on your own model.

    Every check that applies to this model and scheme is measured. The exit code is 4 if one fails. A scheme in the
    checkpoint is removed first, and its target length becomes the default. A PEFT adapter is merged. Without --scheme,
    the scheme of the checkpoint is checked, with its options and lengths, and with new values of learned parameters.
    """
    from hf_posenc.checkpoints.checkpoint import Checkpoint
    from hf_posenc.checkpoints.merge import load_unpatched
    from hf_posenc.checks import check_scheme
    from hf_posenc.checks.registry import check_named

    named, options = cli.model_named(model, base), cli.scheme_options(scheme, option)
    chosen = cli.words_of(checks)
    for name in chosen:
        check_named(name)
    given = {"scheme": scheme, "factor": factor, "target_length": target_length, "trained_length": trained_length}
    asked = {name: value for name, value in given.items() if value is not None} | options
    if (own := Checkpoint.open(named).scheme) is not None:
        stored = own.arguments() if scheme is None else {"target_length": own.target_length}
        if factor is not None:
            del stored["target_length"]
        asked = stored | asked
        output.note(cli.REMOVED.format(own))
    elif scheme is None:
        raise BadArgument(f"{model} carries no scheme. Name the scheme to check, such as --scheme yarn.")
    with output.progress() as show_progress:
        loaded = load_unpatched(**cli.loading_of(named, "float32"))
        deviations = check_scheme(
            loaded, checks=chosen or None, progress=lambda name: show_progress(None, name), **asked
        )
    if context.obj[DEBUG]:
        for raised in filter(None, (deviation.traceback for deviation in deviations)):
            output.note(raised)
    show(deviations, as_json)
    if any(deviation.failed for deviation in deviations):
        raise Exit(CONTRACT)


def show(deviations: list[Deviation], as_json: bool) -> None:
    """Show one line per check, then the commands that repeat failed checks."""
    if as_json:
        rows = [asdict(one) | {"failed": one.failed} for one in deviations]
        for row in rows:
            del row["traceback"]  # it names folders of this machine
        output.show_json(rows)
        return
    output.show_table(COLUMNS, [(one.check, not one.failed, one.value, one.tolerance, one.where) for one in deviations])
    again = [f"Measure {one.check} again: {one.command}" for one in deviations if one.failed]
    output.show_text("\n".join(again or ["Every check passes."]))
