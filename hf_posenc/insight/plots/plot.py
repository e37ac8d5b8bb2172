"""What a notebook calls: schemes in, figures or numbers out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hf_posenc.insight.plots.compose import (
    PlotRequest,
    figure,
    first_plot,
    sheets,
)
from hf_posenc.insight.plots.models import Model, Shapes
from hf_posenc.insight.plots.registry import (
    Plot,
    Sheet,
    View,
    plot_of,
)
from hf_posenc.schemes.entry import Given, entries_of

VIEW = tuple(View.__dataclass_fields__)
LENGTHS = ("factor", "target_length", "trained_length")


def show(schemes: str | Iterable[Given], pictures: str | Sequence[str] | None = None, **how: Any) -> dict[str, Any]:
    """Draw schemes side by side.

    Args:
        schemes: as for ``hf-posenc compare``: ``"yarn"``, ``"rope,self_extend:group=8"``, ``("yarn", {"factor": 8})``.
        pictures: names of pictures; by default the one that says most of the first scheme.
        **how: ``factor``, ``target_length``, ``trained_length``; ``length``, ``start``, ``position``, ``head``,
            ``channels``, ``vectors`` as in `View`; ``layer``; ``model``, a model to look into, or ``shapes``, the
            `Shapes` of a host that is not there.

    Returns:
        A matplotlib figure under the name of each picture.

    Raises:
        MissingExtra: matplotlib is not installed.
        PosEncError: a scheme, an option, a length or a picture is refused.
    """
    order = order_of(schemes, **how)
    return {picture.name: figure(picture, sheets(picture, order)) for picture in asked(pictures, order)}


def numbers(schemes: str | Iterable[Given], picture: str, **how: Any) -> list[Sheet]:
    """The numbers behind a picture, one `Sheet` a scheme; arguments and errors as of `show`."""
    return sheets(plot_of(picture), order_of(schemes, **how))


def asked(pictures: str | Sequence[str] | None, order: PlotRequest) -> list[Plot]:
    """The pictures of names, or the one that says most of these schemes."""
    if pictures is None:
        return [first_plot(order)]
    return [plot_of(name) for name in ([pictures] if isinstance(pictures, str) else pictures)]


def order_of(
    schemes: str | Iterable[Given], *, model: Any = None, shapes: Shapes | None = None, layer: int = 0, **how: Any
) -> PlotRequest:
    """What `show` is asked for.

    Raises:
        TypeError: a keyword is none of them.
        PosEncError: a scheme or option is refused.
    """
    unknown = set(how) - {*VIEW, *LENGTHS}
    if unknown:
        raise TypeError(f"show() got {min(unknown)!r}. It takes model, shapes, layer, {', '.join((*VIEW, *LENGTHS))}.")
    return PlotRequest(
        entries_of(schemes),
        None if model is None else Model(model),
        View(**{name: value for name, value in how.items() if name in VIEW}),
        {name: value for name, value in how.items() if name in LENGTHS and value is not None},
        layer,
        shapes or Shapes(),
    )
