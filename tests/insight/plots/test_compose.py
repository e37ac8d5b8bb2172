"""Which plots apply to a scheme, and with which lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from hf_posenc.core.record import SchemeRecord
from hf_posenc.errors import MissingPackage, OptionOutOfRange
from hf_posenc.insight.plots import Shapes, numbers, registry
from hf_posenc.insight.plots.compose import plots_of, request_of, sheets
from hf_posenc.insight.plots.kinds import list_plots, plot_of
from hf_posenc.insight.plots.marks import figure
from hf_posenc.insight.plots.registry import NothingToPlot, Plot, Sheet, Target, UnknownPlot, View, register_plot
from hf_posenc.schemes.registry import list_schemes

SMALL = Shapes(heads=2, head_dim=8, width=16)


@pytest.mark.parametrize(
    ("schemes", "plot"),
    [
        ("sinusoidal", "code"), ("learned", "code"), ("binary,sinusoidal", "code"), ("rope", "clock"),
        ("yarn", "frequencies"), ("pi,ntk,llama3", "frequencies"), ("self_extend,dca,rerope,string", "distance"),
        ("window,sinks", "visible"), ("alibi", "bias"), ("alibi,t5", "bias"),
        ("randpos", "places"), ("logn", "temperature"), ("rope,alibi", "score"),
    ],
)  # fmt: skip
def test_the_default_plot_of_schemes(schemes: str, plot: str) -> None:
    assert plots_of(request_of(schemes, shapes=SMALL))[0].name == plot


@pytest.mark.parametrize("record", list_schemes(), ids=lambda record: record.name)
def test_every_scheme_has_plots_with_numbers(record: SchemeRecord) -> None:
    """Except schemes that read a layer's own projections."""
    order = request_of(record.name, shapes=SMALL, trained_length=16, length=12)
    applicable_plots = plots_of(order)
    assert applicable_plots
    for plot in applicable_plots:
        if record.name != "deberta":
            values = [v for v in sheets(plot, order)[0].numbers.values() if isinstance(v, torch.Tensor)]
            assert all(v.double().isfinite().any() for v in values)


def test_plots_that_do_not_apply_are_refused() -> None:
    with pytest.raises(NothingToPlot, match="'alibi'"):
        sheets(plot_of("clock"), request_of("rope,alibi", shapes=SMALL))
    with pytest.raises(OptionOutOfRange, match="head"):
        numbers("rope", "clock", shapes=SMALL, head=0)
    with pytest.raises(UnknownPlot, match="'clock'"):
        plot_of("clok")


def test_given_lengths_replace_those_of_the_plot() -> None:
    own, given = (numbers("rerope", "distance", shapes=SMALL, **how)[0].numbers for how in ({}, {"trained_length": 20}))
    assert (own["trained_length"], own["distance"].shape) == (64, (256, 256))
    assert (given["trained_length"], given["distance"].shape) == (20, (80, 80))
    own_factor = numbers("yarn:factor=2,yarn", "temperature", shapes=SMALL, factor=8, length=2)
    scales = [float(sheet.numbers["factor"][0]) for sheet in own_factor]
    assert scales == pytest.approx([(0.1 * math.log(s) + 1) ** 2 for s in (2, 8)])


@pytest.fixture
def own_plot() -> Iterator[type[Plot]]:
    list_plots()

    @register_plot
    class Slope(Plot):
        name, title, hooks = "slope", "How fast the bias falls", ("bias",)

        def numbers(self, target: Target, view: View) -> dict[str, Any]:
            return {"slope": plot_of("bias_curve").numbers(target, view)["bias"].diff()[:, 0]}

        def draw(self, figure: Any, sheets: Sequence[Sheet]) -> None:
            figure.subplots().bar(range(2), sheets[0].numbers["slope"].tolist())

    yield Slope
    del registry.PLOTS["slope"]


def test_a_registered_plot(own_plot: type[Plot]) -> None:
    assert numbers("alibi", "slope", shapes=SMALL)[0].numbers["slope"].tolist() == pytest.approx([-(2**-4), -(2**-8)])
    with pytest.raises(ValueError, match="belongs to"):
        register_plot(type("Other", (own_plot,), {}))


def test_without_matplotlib_there_are_numbers_but_no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    found = sheets(plot_of("code"), request_of("binary", shapes=SMALL, length=4))
    with pytest.raises(MissingPackage, match=r"hf-posenc\[plot\]"):
        figure(plot_of("code"), found)
