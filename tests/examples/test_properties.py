"""Cells of the table, and the single layer they are measured on, against the formulas of the papers in float64."""

from __future__ import annotations

import json
import math
import runpy
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from properties import PROPERTIES, PropertyTarget, PropertyValue, measure, targets
from properties.layer import gaussian, logits
from properties.translation import fit, pairs
from torch import Tensor

from hf_posenc.attention.routes import dense_blocks, length_rotation
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Block, BlockBias
from hf_posenc.schemes import registry
from hf_posenc.schemes.base import Scheme

WIDTH, TRAINED, TEXT = 128, 64, 128  # of the bench


@lru_cache(maxsize=32)
def target(scheme: str) -> PropertyTarget:
    name, _, option = scheme.partition(":")
    options = dict([option.split("=")]) if option else {}
    return targets(name, options)[0]


@lru_cache(maxsize=256)
def cell(scheme: str, name: str) -> PropertyValue:
    return PROPERTIES[name].measure(target(scheme))


def sinusoid(positions: Tensor) -> Tensor:
    """Vaswani et al., section 3.5."""
    angles = positions.double()[:, None] * 10_000.0 ** (-2 * torch.arange(WIDTH // 2).double() / WIDTH)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


COLUMNS = ("integer", "norm01", "binary", "sinusoidal", "sinusoidal:kind=sin", "learned", "rope", "alibi")
# One row a property, as the catalogue of schemes has it; None where it leaves the question open.
CATALOGUE = {
    "unique": (True, True, True, True, True, True, True, True),
    "same": (True, False, True, True, True, True, True, True),
    "linear": (False, False, False, True, False, False, True, True),
    "relative": (False, False, False, False, False, False, True, True),
    "beyond": (True, True, True, True, True, False, True, True),
    "deterministic": (True, True, True, True, True, True, True, True),
    "axes": (None, None, None, True, None, True, True, True),
    "bounded": (False, True, True, True, True, True, True, False),
    "continuous": (True, True, False, True, True, False, True, True),
    "decays": (False, False, False, True, False, None, True, True),
    "equal_gaps": (True, False, True, True, True, True, True, True),
    "direction": (True, True, True, False, None, True, True, False),
}


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_table_of_the_catalogue(name: str) -> None:
    measured = {scheme: cell(scheme, name).holds for scheme in COLUMNS}
    wanted = {s: w for s, w in zip(COLUMNS, CATALOGUE[name], strict=True) if w is not None}
    assert {scheme: measured[scheme] for scheme in wanted} == wanted


def test_least_distances_are_the_formulas() -> None:
    codes = sinusoid(torch.arange(TEXT))
    apart = (codes[:, None] - codes[None]).norm(dim=-1)
    assert cell("sinusoidal", "unique").value == pytest.approx(float(apart[apart > 0].min()), rel=1e-5)
    assert cell("integer", "unique").value == pytest.approx(math.sqrt(WIDTH))  # one step in every channel
    assert cell("norm01", "unique").value == pytest.approx(math.sqrt(WIDTH) / (TEXT - 1), rel=1e-5)
    assert cell("binary", "unique").value == pytest.approx(1.0)  # one digit
    slopes = [2.0 ** (-8 * (h + 1) / 4) for h in range(4)]
    assert cell("alibi", "unique").value == pytest.approx(math.sqrt(8 * sum(m * m for m in slopes)))  # 8 queries


def test_interval_codes_depend_on_the_length() -> None:
    half = TEXT // 2
    assert cell("norm01", "same").value == pytest.approx(1 - (half - 1) / (TEXT - 1), rel=1e-5)
    assert cell("norm01", "equal_gaps").value == pytest.approx(1 / 2 - 1 / 3, rel=1e-5)


def test_growth_is_the_formula() -> None:
    assert cell("alibi", "bounded").value == pytest.approx((2**25 - 1) / (2**17 - 1), rel=1e-3)  # linear in distance
    assert cell("integer", "bounded").value == pytest.approx((2**16 - 1) / 1023, rel=1e-3)
    assert cell("rope", "bounded").value == pytest.approx(1.0, abs=1e-6)  # a rotation keeps lengths


def test_the_reach_of_a_table_is_its_size() -> None:
    assert cell("learned", "beyond").value == TRAINED - 1
    assert "64 positions" in cell("learned", "beyond").explanation
    assert cell("learned_hier", "beyond").value == TRAINED**2 - 1  # two digits of base 64
    assert cell("rope", "beyond").value == 2**20 - 1


def test_the_fitted_step_is_the_rotation_of_the_formula() -> None:
    """M_k = diag of [[cos kω, sin kω], [−sin kω, cos kω]], here for rows of codes, hence transposed."""
    found = fit(*pairs(target("sinusoidal")))
    angles = 5 * 10_000.0 ** (-2 * torch.arange(WIDTH // 2).double() / WIDTH)
    blocks = [torch.tensor([[a.cos(), -a.sin()], [a.sin(), a.cos()]]) for a in angles]
    codes = sinusoid(torch.arange(1000, 1400))
    assert found is not None
    assert torch.allclose(codes @ found.matrix, codes @ torch.block_diag(*blocks).double(), atol=1e-4)
    assert cell("sinusoidal", "linear").note == "rotation"
    assert cell("integer", "linear").note == "affine"  # p + k is no multiple of p


def test_a_map_is_judged_where_it_was_not_fitted() -> None:
    """Control: 128 channels fit 120 random rows exactly, and say nothing of the next ones."""
    rows = torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = fit((rows[:120], rows[1:121]), (rows[130:190], rows[131:191]))
    assert found is not None
    assert float((rows[:120] @ found.matrix - rows[1:121]).abs().max()) < 1e-6
    assert found.residual > 0.5


@pytest.mark.parametrize(
    ("scheme", "name", "holds"),
    [
        ("none", "unique", False),
        ("none", "relative", None),
        ("t5", "unique", False),  # far distances share a bucket
        ("rel_bias", "continuous", False),
        ("kerple", "bounded", False),  # a logarithm has no end
        ("fire", "bounded", True),  # its input ends at 1
        ("fire", "relative", False),  # its normaliser is the query's position
        ("sandwich", "linear", True),  # a product of sinusoidal codes
        ("kerple", "linear", False),
        ("randpos", "deterministic", False),
        ("pose", "deterministic", True),
        ("rerope", "unique", False),  # all beyond its window is one distance
        ("window", "unique", False),
        ("self_extend", "relative", False),  # groups do not move with the query
        ("logn", "relative", False),  # a factor of the row
        ("dca", "relative", False),
        ("xpos", "decays", True),
        ("deberta", "direction", True),
        ("kerple", "direction", False),
        ("xpos", "direction", None),  # a decoder's
        ("rope_nd", "axes", True),
        ("cope", "continuous", None),  # it counts tokens
    ],
)
def test_other_schemes(scheme: str, name: str, holds: bool | None) -> None:
    found = cell(scheme, name)
    assert found.holds is holds, found
    assert found.explanation


@pytest.fixture
def odd() -> Iterator[str]:
    """A third party's scheme whose bias is neither relative, nor bounded, nor steady."""

    @registry.register_scheme("odd_one")
    class Odd(Scheme):
        """Score plus the product of both positions, jumping at every third."""

        def bias(self, ctx: PositionContext) -> BlockBias:
            def of_block(block: Block) -> Tensor:
                product = block.query_positions[:, :, None] * (block.key_positions[:, None, :] // 3)
                return product[:, None].float().expand(block.scores.shape)

            return BlockBias(of_block)

    yield "odd_one"
    registry._SCHEMES.pop("odd_one", None)
    registry._CLASSES.pop("odd_one", None)


def test_a_scheme_from_outside(odd: str) -> None:
    row = measure([odd])[odd]
    assert {name: row[name].holds for name in ("relative", "bounded", "continuous", "unique")} == {
        "relative": False, "bounded": False, "continuous": False, "unique": False,
    }  # fmt: skip
    assert row["deterministic"].holds


def test_the_script_measures_each_kind_of_layer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Path(__file__).parents[2] / "examples" / "lessons" / "properties"
    monkeypatch.setattr(sys, "argv", ["properties", "irope", "rope", "--json"])
    runpy.run_path(str(script), run_name="__main__")
    found = json.loads(capsys.readouterr().out)
    assert found["irope (layer 0)"]["relative"]["holds"]
    assert found["irope (layer 3)"]["relative"]["value"] is None
    assert found["rope"] == {name: cell("rope", name).to_dict() for name in PROPERTIES}


COUNT = 40


def content(seed: int) -> Tensor:
    return gaussian(1, COUNT, 128, seed=seed)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """RoFormer's complex form on half-split channels: ``x [heads, n, 32]``."""
    angles = positions.double()[:, None] * 10_000.0 ** (-2 * torch.arange(16).double() / 32)
    pairs = torch.complex(x[..., :16], x[..., 16:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((pairs.real, pairs.imag), dim=-1)


@pytest.mark.parametrize("start", [0, 1_000_000])
def test_logits_of_rope_are_the_complex_form(start: int) -> None:
    layer, positions = target("rope").layer(), torch.arange(start, start + COUNT)
    found = layer.scores(content(1), content(2), positions[None])[0]
    q, k = (rotated(one[0], positions) for one in (layer.query(content(1)), layer.key(content(2))))
    wanted = q @ k.repeat_interleave(2, 0).mT / 32**0.5
    seen = torch.ones(COUNT, COUNT).tril().bool()
    assert torch.equal(found.isfinite(), seen.expand_as(found))
    assert torch.allclose(found[:, seen], wanted[:, seen], atol=1e-6)  # tables are float32
    other = torch.softmax(found - wanted.mT, -1)
    assert not torch.allclose(other, torch.softmax(found - wanted, -1), atol=1e-2)  # control


@pytest.mark.parametrize(
    "scheme",
    ["t5", "self_extend", "dynamic_ntk", "window", "deberta", "fox", "ssmax", "cope"],
)
def test_weights_are_the_engines(scheme: str) -> None:
    """In float32, where the engine takes every bias."""
    layer = target(scheme).layer(dtype=torch.float32)
    with torch.no_grad():
        call = layer.call(content(1).float(), content(1).float(), torch.arange(COUNT)[None])
        engine = (dense_blocks if call.terms.row_rotation is None else length_rotation).attend_with_weights(call)[1]
        assert torch.allclose(logits(call).softmax(-1), engine, atol=1e-5)
