"""``hf-posenc show``: plots of schemes, computed by the code that models run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from hf_posenc.cli import arguments as cli
from hf_posenc.cli import output
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.cli.output import check_output_file
from hf_posenc.cli.settings import set_option, settings_of
from hf_posenc.core.files.paths import slug
from hf_posenc.schemes.entry import entries_of

if TYPE_CHECKING:
    from hf_posenc.insight.plots.compose import PlotRequest
    from hf_posenc.insight.plots.registry import Plot


FOLDER = Path("pictures")
ALL = "all"
VIEW = "View"
of_view = partial(Option, rich_help_panel=VIEW)
SHAPES = ("kind", "heads", "head_dim", "width", "layers")


def show(
    context: Context,
    schemes: Annotated[
        list[str] | None, Argument(help="Schemes side by side: rope yarn:factor=8 self_extend:group=4,window=32.")
    ] = None,
    picture: Annotated[
        list[str] | None, of_view("--picture", "-p", help="Name of a plot, or all; may be repeated.")
    ] = None,
    listed: Annotated[
        bool, of_view("--list", help="List all plots, or those of the schemes if any are named.")
    ] = False,
    model: Annotated[
        str | None,
        cli.of_model(
            "--model",
            "-m",
            help="Take shapes and weights from a model without a scheme: folder, hub name, or starter:llama.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        set_option(
            "Shapes without a model: kind=llama (or gpt2, bert), heads=8, head_dim=64, width=128, layers=4", cli.MODEL
        ),
    ] = None,
    trained_length: Annotated[
        int | None,
        cli.length_option(
            help="Pre-training context length, such as 4096 or 4k; default: the plot's own.", heading=cli.MODEL
        ),
    ] = None,
    factor: cli.Factor = None,
    layer: Annotated[int, of_view(min=0, help="Layer, where the scheme differs between layers.")] = 0,
    head: Annotated[int | None, of_view(min=0, help="A single head; default: all.")] = None,
    length: Annotated[
        int | None,
        cli.length_option(
            "--length", "-l", help="Number of positions shown, at least 2; such as 1024 or 1k.", heading=VIEW
        ),
    ] = None,
    position: Annotated[int | None, of_view(min=0, help="Single position shown.")] = None,
    channels: Annotated[str | None, of_view(help="Channels or rotation pairs, as in 0,8,16.")] = None,
    out: Annotated[Path | None, cli.of_output(help="A .png or .svg; default: pictures/NAME.png.")] = None,
    as_json: cli.AsJson = False,
) -> None:
    """Plot embeddings, rotations, biases, distances, masks, scores.

    The numbers come from the code that models run; learned parameters have their initial values. With --json the
    numbers are written to stdout, and a file only if --out names one. Each scheme has its own scale.
    """
    from hf_posenc.insight.plots import compose, kinds
    from hf_posenc.insight.plots.models import Shapes

    if not schemes:
        if not listed or model is not None:
            raise BadArgument("There is no scheme to show. Name some, as in hf-posenc show rope, or pass --list.")
        return show_rows(kinds.list_plots(), as_json)
    if model is not None:
        cli.check_unread(context, ("settings",), "has no effect beside --model, which has shapes. Leave one out.")
    request = compose.request_of(
        entries_of(",".join(schemes)), model=None if model is None else load(model),
        shapes=Shapes(**settings_of(context, SHAPES)), layer=layer, factor=factor, trained_length=trained_length,
        length=length, position=position, head=head,
        channels=tuple(cli.whole_numbers("--channels", [channels], 0)) if channels else None,
    )  # fmt: skip
    if not request.differs_by_layer:
        cli.check_unread(context, ("layer",), "has no effect on schemes that are alike in all layers. Leave it out.")
    if listed:
        return show_rows(compose.plots_of(request), as_json)  # the default one first
    draw(request, picture, out, as_json=as_json)


def draw(request: PlotRequest, names: Sequence[str] | None, out: Path | None, *, as_json: bool) -> None:
    """Compute the plots; write them and show their files, or show their numbers."""
    from hf_posenc.core.plotting import require_matplotlib
    from hf_posenc.insight.plots import compose, kinds

    words = cli.words_of(names)
    if not words:
        plots = compose.plots_of(request)[:1]
    elif words == [ALL]:
        plots = compose.plots_of(request)
    else:
        plots = [kinds.plot_of(word) for word in words]
    path = out or FOLDER / f"{name_of(request, plots)}.png"
    check_output_file(path)
    compose.check_ending(path)
    writes = out is not None or not as_json
    if writes:
        require_matplotlib()
    compose.check_view(request, plots)
    computed = [(one, compose.sheets(one, request)) for one in plots]
    written = compose.save(computed, path) if writes else []
    if as_json:
        output.show_json([compose.to_dict(*one) | {"files": list(map(str, written))} for one in computed])
        return
    for file in written:
        output.show_text(f"Written to {file}")


def name_of(request: PlotRequest, plots: Sequence[Plot]) -> str:
    """Name of a file: its schemes, and the plot if there is one."""
    schemes = slug(re.sub(r"[:,;]", "-", "-".join(entry.label for entry in request.entries)))
    return f"{schemes}-{slug(plots[0].name)}" if len(plots) == 1 else schemes


def load(model: str) -> Any:
    """Load the model whose shapes and weights are shown."""
    from hf_posenc.checkpoints.load import from_pretrained

    with output.other_bars_off():
        return from_pretrained(**cli.loading_of(cli.model_named(model), "float32")).eval()


def show_rows(plots: Sequence[Plot], as_json: bool) -> None:
    """Show names and titles of plots."""
    if as_json:
        output.show_json([{"name": plot.name, "title": plot.title} for plot in plots])
    else:
        output.show_table(("plot", "shows"), [(plot.name, plot.title) for plot in plots])
