"""``hf-posenc show``: plots of schemes, computed by the code that models run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Factor,
    SchemeOptions,
    TargetLength,
    check_unread,
    command_line,
    is_given,
    length_option,
    loading_of,
    model_named,
    words_of,
)
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.commands.show_arguments import channels_of, choice, entries_with, file_name
from hf_posenc.cli.output_paths import check_output_file

if TYPE_CHECKING:
    from hf_posenc.insight.plots.compose import PlotRequest
    from hf_posenc.insight.plots.registry import Plot
    from hf_posenc.schemes.entry import Entry

FOLDER = Path("pictures")
ALL = "all"
NOTHING_NAMED = "There is no scheme to show. Name some, as in hf-posenc show rope, or pass --list."
SWEEPS = ("factor", "length", "position")
KINDS = ("llama", "gpt2", "bert")
VECTORS = ("ones", "random")
SHAPE = ("kind", "heads", "head_dim", "width", "layers")
VIEW = ("length", "start", "position", "head", "channels", "vectors")
OF_DRAWING = (*VIEW, "layer", "own_scales", "frames")
OF_SCHEMES = (*SHAPE, "trained_length", "factor", "target_length", "options")


def show(
    context: Context,
    schemes: Annotated[
        list[str] | None, Argument(help="Schemes side by side: rope yarn:factor=8 self_extend:group=4,window=32.")
    ] = None,
    picture: Annotated[
        list[str] | None, Option("--picture", "-p", help="Name of a plot, or all; may be repeated.")
    ] = None,
    listed: Annotated[bool, Option("--list", help="List all plots, or those of the schemes if any are named.")] = False,
    out: Annotated[
        Path | None, Option(help="A .png, .svg, .gif or .html; default: pictures/NAME.png, or .gif if animated.")
    ] = None,
    animate: Annotated[
        str | None,
        Option(help="Quantity that changes between frames: factor, length, position, or own (the plot's own)."),
    ] = None,
    frames: Annotated[int, Option(min=2, help="Frames of an animation.")] = 24,
    model: Annotated[
        str | None,
        Option(
            "--model",
            "-m",
            help="Take shapes and weights, and without SCHEMES the scheme, from a model: folder, hub name, or "
            "starter:llama.",
        ),
    ] = None,
    kind: Annotated[
        str | None, Option(help="Without a model: shaped like llama, gpt2 or bert; default: as the scheme needs.")
    ] = None,
    heads: Annotated[int, Option(min=1, help="Without a model: number of heads.")] = 8,
    head_dim: Annotated[int, Option(min=2, help="Without a model: head dimension.")] = 64,
    width: Annotated[int, Option(min=1, help="Without a model: hidden size.")] = 128,
    layers: Annotated[int, Option(min=1, help="Without a model: number of layers.")] = 4,
    trained_length: Annotated[
        int | None,
        length_option(help="Pre-training context length, such as 4096 or 4k; default: the plot's own."),
    ] = None,
    factor: Factor = None,
    target_length: TargetLength = None,
    options: SchemeOptions = None,
    length: Annotated[
        int | None,
        length_option("--length", "-l", help="Number of positions shown, at least 2; such as 1024 or 1k."),
    ] = None,
    start: Annotated[int, Option(min=0, help="First position, in plots of embeddings.")] = 0,
    position: Annotated[int | None, Option(min=0, help="Single position shown, or that of the last frame.")] = None,
    channels: Annotated[str | None, Option(help="Channels or rotation pairs: 0,8,16 or 0:16.")] = None,
    layer: Annotated[int, Option(min=0, help="Layer, where the scheme differs between layers.")] = 0,
    head: Annotated[int | None, Option(min=0, help="A single head; default: all.")] = None,
    vectors: Annotated[
        str, Option(help="Queries and keys: ones, or random vectors, the same at all positions.")
    ] = "ones",
    own_scales: Annotated[
        bool, Option("--own-scales/--same-scale", help="A scale for each panel, or one for all schemes.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Plot schemes: embeddings, rotations, biases, distances, masks, scores.

    The numbers come from the code that models run; learned parameters have their initial values, or, in the scheme
    that --model carries, those of the model. With --json the numbers are written to stdout, and a file only if --out
    names one. Each panel has its own scale.
    """
    from hf_posenc.insight.plots.models import Shapes
    from hf_posenc.insight.plots.registry import View

    if listed:
        check_unread(context, (*OF_DRAWING, "out", "animate", "picture"), "has no effect beside --list. Leave one out.")
    if not schemes and model is None:
        if not listed:
            raise BadArgument(NOTHING_NAMED)
        check_unread(context, OF_SCHEMES, "has an effect on schemes, and none is named. Name some, or leave it out.")
        return list_all(as_json)
    if model is not None:
        check_unread(context, SHAPE, "has no effect beside --model, which has a shape. Leave one out.")
    if animate is None and (out is None or out.suffix.lower() != ".gif"):
        check_unread(context, ("frames",), "has an effect on animations only. Add --animate, or leave it out.")
    entries = entries_with(schemes, options) if schemes else []
    view = View(
        length, start, position, head, channels_of(channels),
        choice("--vectors", vectors, VECTORS),  # type: ignore[arg-type]
    )  # fmt: skip
    shapes = Shapes(
        None if kind is None else choice("--kind", kind, KINDS),  # type: ignore[arg-type]
        heads, head_dim, width, layers,
    )  # fmt: skip
    lengths = {"factor": factor, "target_length": target_length, "trained_length": trained_length}
    given = {name: value for name, value in lengths.items() if value is not None}
    if options and not entries:
        raise BadArgument(f"--option {options[0]} needs a scheme, and none is named. Name it, as in hf-posenc show t5.")
    request = request_of(entries, model, view=view, lengths=given, layer=layer, shapes=shapes)
    if listed:
        return list_applicable(request, as_json)
    draw(context, request, picture, out, animate, frames, same_scale=not own_scales, as_json=as_json)


def draw(
    context: Context,
    request: PlotRequest,
    names: Sequence[str] | None,
    out: Path | None,
    animate: str | None,
    frames: int,
    *,
    same_scale: bool,
    as_json: bool,
) -> None:
    """Compute the plots; write them and show where, or show their numbers."""
    from hf_posenc.core.plotting.figures import require_matplotlib
    from hf_posenc.insight.plots import animate as animation
    from hf_posenc.insight.plots import compose
    from hf_posenc.insight.plots import save as saving

    sweep = None if animate is None else choice("--animate", animate, (*SWEEPS, "own"))
    animated = sweep is not None or (out is not None and out.suffix.lower() == ".gif")
    path = out or FOLDER / "x.png"
    check_output_file("--out", path)
    saving.check_ending(path if out or not animated else path.with_suffix(".gif"), animated=animated)
    if not request.differs_by_layer:
        check_unread(
            context, ("layer",), "has no effect on schemes that are alike in all layers. Add --model, or leave it out."
        )
    if out or not as_json:
        require_matplotlib()
    else:
        check_unread(context, ("own_scales",), "has an effect on drawings only. Add --out, or leave it out.")
    plots = chosen(request, names)
    computed = []
    for one in plots:
        kinds: Any = None if sweep == "own" else sweep
        sheets = animation.frames(one, request, kinds, frames) if animated else [compose.sheets(one, request)]
        computed.append(saving.ComputedPlot(one, sheets, same_scale))
    check_unread(context, set(VIEW) - request.read, compose.no_effect(plots))
    if is_given(context, "own_scales") and not any(one.same_scale_matters for one in computed):
        check_unread(context, ("own_scales",), compose.no_effect(plots))
    labels = ", ".join(entry.label for entry in request.entries)
    if out is None:
        path = FOLDER / f"{file_name(request, plots)}{'.gif' if animated else '.png'}"
    written = saving.save(computed, path, title=labels, command=command_line(context)) if out or not as_json else []
    if as_json:
        output.show_json([saving.to_dict(one) | {"files": list(map(str, written))} for one in computed])
        return
    for file in written:
        output.show_text(f"Written to {file}")


def request_of(entries: Sequence[Entry], model: str | None, **how: Any) -> PlotRequest:
    """Build the request, loading the model if one is given; without entries, of the scheme that it carries.

    Raises:
        BadArgument: there are no entries, and the model carries no scheme.
    """
    from hf_posenc.insight.plots.compose import PlotRequest
    from hf_posenc.insight.plots.models import Model, carried

    if model is None:
        return PlotRequest(entries, **how)
    from hf_posenc.checkpoints.load import from_pretrained

    with output.other_bars_off():
        loaded = from_pretrained(**loading_of(model_named(model), "float32"))
        shown = entries or carried(loaded)
        if not shown:
            raise BadArgument(NOTHING_NAMED)
        return PlotRequest(shown, Model(loaded.eval()), **how)


def chosen(request: PlotRequest, names: Sequence[str] | None) -> list[Plot]:
    """Resolve ``--picture``: the plots named, all that apply, or the most informative one."""
    from hf_posenc.insight.plots.catalogue import plot_of
    from hf_posenc.insight.plots.compose import first_plot, plots_of

    words = words_of(names)
    if not words:
        return [first_plot(request)]
    return plots_of(request) if words == [ALL] else [plot_of(word) for word in words]


def list_all(as_json: bool) -> None:
    """List all registered plots."""
    from hf_posenc.insight.plots.catalogue import list_plots

    show_rows(list_plots(), as_json)


def list_applicable(request: PlotRequest, as_json: bool) -> None:
    """List the plots that apply to these schemes, the default one first."""
    from hf_posenc.insight.plots.compose import first_plot, plots_of

    applicable = plots_of(request)
    first = first_plot(request)
    show_rows([first, *(plot for plot in applicable if plot is not first)], as_json)


def show_rows(plots: Sequence[Plot], as_json: bool) -> None:
    """Show names, titles and animated quantities of plots."""
    if as_json:
        output.show_json([{"name": p.name, "title": p.title, "animates": p.sweep} for p in plots])
    else:
        output.show_table(("plot", "shows", "animates"), [(p.name, p.title, p.sweep) for p in plots])
