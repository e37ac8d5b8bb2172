"""``hf-posenc show``: pictures of schemes, from the code that models run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Factor,
    SchemeOptions,
    TargetLength,
    check_file,
    command_line,
    model_path,
    words_of,
)
from hf_posenc.cli.errors import BadArgument
from hf_posenc.core.files.slug import slug
from hf_posenc.errors import UnknownOption, nearest

if TYPE_CHECKING:
    from hf_posenc.insight.plots.compose import PlotRequest
    from hf_posenc.insight.plots.registry import Plot
    from hf_posenc.schemes.entry import Entry

FOLDER = Path("pictures")
ALL = "all"
SWEEPS = ("factor", "length", "position")
KINDS = ("llama", "gpt2", "bert")
VECTORS = ("ones", "random")


def show(
    context: Context,
    schemes: Annotated[
        list[str] | None, Argument(help="Schemes side by side: rope yarn:factor=8 self_extend:group=4,window=32.")
    ] = None,
    picture: Annotated[
        list[str] | None, Option("--picture", "-p", help="Name of a picture, or all; may be repeated.")
    ] = None,
    listed: Annotated[bool, Option("--list", help="List the pictures, those of the schemes if any are named.")] = False,
    out: Annotated[
        Path | None, Option(help="A .png, .svg, .gif or .html; by default pictures/NAME.png, or .gif if it moves.")
    ] = None,
    animate: Annotated[
        str | None, Option(help="What changes from frame to frame: factor, length, position, or own.")
    ] = None,
    frames: Annotated[int, Option(min=2, help="Of an animation.")] = 24,
    model: Annotated[
        str | None, Option("--model", "-m", help="Look into a model: a folder, a hub name, or starter:llama.")
    ] = None,
    kind: Annotated[
        str | None, Option(help="Without a model: one like llama, gpt2 or bert; by default as the scheme needs.")
    ] = None,
    heads: Annotated[int, Option(min=1, help="Without a model: its heads.")] = 8,
    head_dim: Annotated[int, Option(min=2, help="Without a model: channels of a head.")] = 64,
    width: Annotated[int, Option(min=1, help="Without a model: channels of a token.")] = 128,
    layers: Annotated[int, Option(min=1, help="Without a model: its layers.")] = 4,
    trained_length: Annotated[int | None, Option(min=1, help="What the weights saw; else the picture's own.")] = None,
    factor: Factor = None,
    target_length: TargetLength = None,
    options: SchemeOptions = None,
    length: Annotated[int | None, Option("--length", "-l", min=2, help="Positions to look at.")] = None,
    start: Annotated[int, Option(min=0, help="The first of them, in pictures of codes.")] = 0,
    position: Annotated[int | None, Option(min=0, help="The one position to look at, or the last frame's.")] = None,
    channels: Annotated[str | None, Option(help="Channels or pairs: 0,8,16 or 0:16.")] = None,
    layer: Annotated[int, Option(min=0, help="Whose scheme, where layers differ.")] = 0,
    head: Annotated[int | None, Option(min=0, help="A single head.")] = None,
    vectors: Annotated[str, Option(help="Queries and keys: ones, or random and the same everywhere.")] = "ones",
    own_scales: Annotated[bool, Option("--own-scales", help="Colours of each scheme on a scale of its own.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw schemes: codes, rotations, biases, distances, masks, scores.

    Numbers come from the code that models run; a learned scheme is as it starts, or as --model has learned it. With
    --json the numbers are written instead, and the file only if --out names one.
    """
    from hf_posenc.insight.plots.models import Shapes
    from hf_posenc.insight.plots.registry import View

    if not schemes:
        if not listed:
            raise BadArgument("There is no scheme to show. Name some, as in hf-posenc show rope, or pass --list.")
        return list_all(as_json)
    entries = entries_with(schemes, options)
    view = View(
        length, start, position, head, channels_of(channels),
        one_of("--vectors", vectors, VECTORS),  # type: ignore[arg-type]
    )  # fmt: skip
    shapes = Shapes(
        None if kind is None else one_of("--kind", kind, KINDS),  # type: ignore[arg-type]
        heads, head_dim, width, layers,
    )  # fmt: skip
    lengths = {"factor": factor, "target_length": target_length, "trained_length": trained_length}
    given = {name: value for name, value in lengths.items() if value is not None}
    order = ordered(entries, model, view=view, lengths=given, layer=layer, shapes=shapes)
    if listed:
        return list_fitting(order, as_json)
    draw(order, picture, out, animate, frames, own_scales=own_scales, as_json=as_json, command=command_line(context))


def draw(
    order: PlotRequest,
    names: Sequence[str] | None,
    out: Path | None,
    animate: str | None,
    frames: int,
    *,
    own_scales: bool,
    as_json: bool,
    command: str,
) -> None:
    """Take the pictures, write them, and say where they are; or the numbers."""
    from hf_posenc.core.plotting.figures import require_matplotlib
    from hf_posenc.insight.plots import compose
    from hf_posenc.insight.plots import save as saving

    sweep = None if animate is None else one_of("--animate", animate, (*SWEEPS, "own"))
    moves = sweep is not None or (out is not None and out.suffix.lower() == ".gif")
    path = out or FOLDER / "x.png"
    check_file("--out", path)
    saving.check_ending(path if out or not moves else path.with_suffix(".gif"), moves=moves)
    if out or not as_json:
        require_matplotlib()
    pictures = chosen(order, names)
    taken = []
    for one in pictures:
        kinds: Any = None if sweep == "own" else sweep
        film = compose.frames(one, order, kinds, frames) if moves else [compose.sheets(one, order)]
        taken.append(saving.Taken(one, film, own_scales))
    labels = ", ".join(entry.label for entry in order.entries)
    if out is None:
        path = FOLDER / f"{file_name(order, pictures)}{'.gif' if moves else '.png'}"
    written = saving.save(taken, path, title=labels, command=command) if out or not as_json else []
    if as_json:
        output.show_json([saving.to_dict(one) | {"files": list(map(str, written))} for one in taken])
        return
    for file in written:
        output.show_text(f"Written to {file}")


def ordered(entries: Sequence[Entry], model: str | None, **how: Any) -> PlotRequest:
    """The order, on a model that is loaded now, or on none."""
    from hf_posenc.insight.plots.compose import PlotRequest
    from hf_posenc.insight.plots.models import Model

    if model is None:
        return PlotRequest(entries, **how)
    from hf_posenc.checkpoints.load import from_pretrained

    with output.other_bars_off():
        return PlotRequest(entries, Model(from_pretrained(model_path(model), dtype="float32").eval()), **how)


def chosen(order: PlotRequest, names: Sequence[str] | None) -> list[Plot]:
    """The pictures of ``--picture``: those named, all that fit, or the one that says most."""
    from hf_posenc.insight.plots.compose import first_plot, plots_of
    from hf_posenc.insight.plots.registry import plot_of

    words = words_of(names)
    if not words:
        return [first_plot(order)]
    return plots_of(order) if words == [ALL] else [plot_of(word) for word in words]


def entries_with(schemes: Sequence[str], words: Sequence[str] | None) -> list[Entry]:
    """The schemes, each with those ``--option``s that it takes.

    Raises:
        UnknownOption: an option that none of them takes.
        PosEncError: a scheme or an option is refused.
    """
    from hf_posenc.schemes.entry import entries_of, read_word
    from hf_posenc.schemes.spec import option_names_of, parts_of_spec

    entries = entries_of(",".join(schemes))
    options = read_word("--option", list(words or ())).options
    known = [
        {} if e.scheme is None else {n for cls, _ in parts_of_spec(e.scheme) for n in option_names_of(cls)}
        for e in entries
    ]
    for name in options:
        if not any(name in names for names in known):
            every = sorted({one for names in known for one in names})
            raise UnknownOption(
                f"None of these schemes has an option {name!r}.{nearest(name, every)} "
                f"They take {', '.join(every) or 'none'}."
            )
    return entries_of(
        replace(entry, options={**entry.options, **{n: v for n, v in options.items() if n in names}})
        for entry, names in zip(entries, known, strict=True)
    )


def channels_of(given: str | None) -> tuple[int, ...] | None:
    """``"0,8,16"`` or ``"0:16"`` as numbers.

    Raises:
        BadArgument: it is neither.
    """
    if given is None:
        return None
    found = re.fullmatch(r"(\d+):(\d+)", given)
    if found:
        numbers = tuple(range(int(found[1]), int(found[2])))
    else:
        numbers = tuple(int(word) for word in words_of([given]) if word.isascii() and word.isdigit())
        numbers = numbers if len(numbers) == len(words_of([given])) else ()
    if not numbers:
        raise BadArgument(f"--channels takes numbers as in 0,8,16 or a range as in 0:16, got {given!r}. Write one.")
    return numbers


def one_of(option: str, given: str, known: Sequence[str]) -> str:
    """A word that must be one of a few.

    Raises:
        BadArgument: it is another.
    """
    if given not in known:
        raise BadArgument(f"{option} is one of {', '.join(known)}, got {given!r}.{nearest(given, known)}")
    return given


def file_name(order: PlotRequest, pictures: Sequence[Plot]) -> str:
    """``"rope-yarn-frequencies"``: the schemes, and the picture where it is a single one."""
    labels = "-".join(entry.label for entry in order.entries)
    plain = slug(re.sub(r"[:,;]", "-", labels))
    return f"{plain}-{slug(pictures[0].name)}" if len(pictures) == 1 else plain


def list_all(as_json: bool) -> None:
    """Every picture there is."""
    from hf_posenc.insight.plots.registry import list_plots

    rows(list_plots(), as_json)


def list_fitting(order: PlotRequest, as_json: bool) -> None:
    """The pictures that show these schemes, the first being taken where none is named."""
    from hf_posenc.insight.plots.compose import first_plot, plots_of

    fitting = plots_of(order)
    first = first_plot(order)
    rows([first, *(picture for picture in fitting if picture is not first)], as_json)


def rows(pictures: Sequence[Plot], as_json: bool) -> None:
    """Names, titles, and what animations change."""
    if as_json:
        output.show_json([{"name": p.name, "title": p.title, "animates": p.sweep} for p in pictures])
    else:
        output.show_table(("picture", "shows", "animates"), [(p.name, p.title, p.sweep) for p in pictures])
