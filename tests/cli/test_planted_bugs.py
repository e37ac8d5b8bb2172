"""Third-party schemes with one bug each: `hf-posenc check` exits with 4 and names the check that finds the bug."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import hf_posenc
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.regions import Region
from hf_posenc.core.terms import (
    Block,
    BlockBias,
    KeyBias,
    ToeplitzBias,
)
from hf_posenc.schemes import registry
from hf_posenc.schemes.options import Positive
from hf_posenc.schemes.rotary.rotary import RoPE

pytestmark = pytest.mark.slow

QUICK = {"unpatch", "second_patch", "effect", "cache", "batch"}  # measured for every bug


class Slope(hf_posenc.Scheme):
    """Bias −distance / 10 in every head, without a bug; the other schemes derive from it."""

    def bias(self, ctx: PositionContext) -> Any:
        heads = self.geometry.heads
        return ToeplitzBias(lambda d: -0.1 * d.abs().float().expand(heads, *d.shape))


class OffByOne(Slope):
    """The bias of a key depends on the next key."""

    def bias(self, ctx: PositionContext) -> BlockBias:
        def of_block(block: Block) -> Tensor:
            ahead = block.key.mean(-1).roll(-1, dims=-1)
            return ahead.repeat_interleave(block.query.shape[1] // ahead.shape[1], dim=1)[:, :, None].expand_as(
                block.scores
            )

        return BlockBias(of_block)


class SlopeByPosition(Slope):
    """A bias of distance whose slope grows with the first position."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, slope = self.geometry.heads, 0.01 * (1 + float(ctx.key_positions.min()))
        return ToeplitzBias(lambda d: -slope * d.abs().float().expand(heads, *d.shape))


class SlopeByQueryCount(Slope):
    """A slope by the number of queries, which differs with a cache."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, slope = self.geometry.heads, 1 / ctx.query_positions.shape[1]
        return ToeplitzBias(lambda d: -slope * d.abs().float().expand(heads, *d.shape))


class IgnoresPadding(Slope):
    """A bias by column, padding included."""

    def bias(self, ctx: PositionContext) -> KeyBias:
        columns = torch.arange(ctx.key_positions.shape[1], dtype=torch.float64) ** 0.5
        return KeyBias(columns.expand(1, self.geometry.heads, -1))


class RotatesColumns(RoPE):
    """RoPE by column instead of position."""

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        return (Region(key_at=lambda keys: torch.arange(keys.shape[-1])[None].expand_as(keys)),)


class HalfPrecisionBias(Slope):
    """A bias in bfloat16, whose rounding errors exceed the differences between distances."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads = self.geometry.heads
        return ToeplitzBias(lambda d: -0.1 * d.abs().bfloat16().expand(heads, *d.shape))


class Detached(Slope):
    """A learned slope without a gradient."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.slopes = nn.Parameter(torch.full((geometry.heads,), 0.1))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.slopes, 0.1)

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        slopes = self.slopes.detach()
        return ToeplitzBias(lambda d: -slopes.view(-1, *(1,) * d.ndim) * d.abs())


class SlopeByLongestText(Slope):
    """A slope by the longest text seen so far."""

    longest_seen = 1

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        self.longest_seen = max(self.longest_seen, ctx.key_positions.shape[1])
        heads, slope = self.geometry.heads, 1 / self.longest_seen
        return ToeplitzBias(lambda d: -slope * d.abs().float().expand(heads, *d.shape))


class HalfPrecisionPositions(RoPE):
    """RoPE by positions in float16, exact up to 2,048 and finite up to 65,504."""

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        return (Region(query_at=self.convert, key_at=self.convert),)

    @staticmethod
    def convert(positions: Tensor) -> Tensor:
        return positions.half().float()


class SlopeByKeyCount(Slope):
    """Another slope from 100 keys on."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, slope = self.geometry.heads, 0.1 if ctx.key_positions.shape[1] < 100 else 0.08
        return ToeplitzBias(lambda d: -slope * d.abs().float().expand(heads, *d.shape))


class DoublePrecisionBias(Slope):
    """No bug: a bias in float64."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads = self.geometry.heads
        return ToeplitzBias(lambda d: -0.1 * d.abs().double().expand(heads, *d.shape))


class OverflowingDistance(Slope):
    """16-bit distances, which overflow at 32,767."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads = self.geometry.heads
        return ToeplitzBias(lambda d: -0.1 * d.short().abs().float().expand(heads, *d.shape))


class OverflowingPosition(RoPE):
    """RoPE by 8-bit positions."""

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        return (Region(query_at=self.convert, key_at=self.convert),)

    @staticmethod
    def convert(positions: Tensor) -> Tensor:
        return positions.to(torch.int8).float()


class Dense(Slope):
    """A bias for all pairs of query and key at once."""

    def bias(self, ctx: PositionContext) -> BlockBias:
        bias = -0.1 * (ctx.query_positions[:, :, None] - ctx.key_positions[:, None]).abs().float()
        return BlockBias(lambda block: bias[:, None, block.rows].expand_as(block.scores))


class FailsOnOneQuery(Slope):
    """Raises an IndexError for a single query."""

    def bias(self, ctx: PositionContext) -> Any:
        return super().bias(ctx) if ctx.query_positions[0, 1] >= 0 else None


class RandomSlope(Slope):
    """A random slope in every forward pass."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, slope = self.geometry.heads, 0.1 + float(torch.rand(()))
        return ToeplitzBias(lambda d: -slope * d.abs().float().expand(heads, *d.shape))


class UnsavedParameter(Slope):
    """Random slopes that are not a parameter, and so not saved."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.slopes = torch.rand(geometry.heads)

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        return ToeplitzBias(lambda d: -self.slopes.view(-1, *(1,) * d.ndim) * d.abs())


class SetsDefaultDtype(Slope):
    """Changes torch's default dtype."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        torch.set_default_dtype(torch.float64)


class KeepsContexts(Slope):
    """Keeps the context of every forward pass."""

    kept: ClassVar[list[PositionContext]] = []

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        self.kept.append(ctx)
        return super().bias(ctx)


class ZeroBias(Slope):
    """A bias of zeros: the same as `none`."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        return ToeplitzBias(lambda d: torch.zeros(self.geometry.heads, *d.shape))


class Learned(Slope):
    """A learned slope for each head, without a bug."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.slopes = nn.Parameter(torch.full((geometry.heads,), 0.1))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.slopes, 0.1)

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        return ToeplitzBias(lambda d: -self.of_heads().view(-1, *(1,) * d.ndim) * d.abs())

    def of_heads(self) -> Tensor:
        return self.slopes


class OneHeadLearns(Learned):
    """Only the first head has a gradient."""

    def of_heads(self) -> Tensor:
        return torch.cat((self.slopes[:1], self.slopes[1:].detach()))


class DoubleGradient(Learned):
    """Twice the right gradient."""

    def of_heads(self) -> Tensor:
        return 2 * self.slopes - self.slopes.detach()


class SharedByCopies(Learned):
    """A closure that reads the original's slopes in a copy of the model."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.of = ToeplitzBias(lambda d, first=self.slopes: -first.view(-1, *(1,) * d.ndim) * d.abs())

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        return self.of


class IgnoresOption(Slope):
    """An option that is validated and never used."""

    def __init__(self, geometry: Geometry, *, slope: Positive = 0.1) -> None:
        super().__init__(geometry)


class ChangesPositions(Slope):
    """Changes the positions in place."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        ctx.key_positions.add_(1)
        return super().bias(ctx)


PLANTED: dict[type[hf_posenc.Scheme], str] = {
    OffByOne: "causality",
    SlopeByPosition: "shift",
    SlopeByQueryCount: "cache",
    IgnoresPadding: "padding",
    RotatesColumns: "batch",
    HalfPrecisionBias: "precision",
    Detached: "gradients",
    SlopeByLongestText: "stateless",
    HalfPrecisionPositions: "far_positions",
    Dense: "memory_growth",
    FailsOnOneQuery: "padded_decoding",
    RandomSlope: "stateless",
    UnsavedParameter: "saving",
    SetsDefaultDtype: "isolation",
    SlopeByKeyCount: "long_text",
    OverflowingDistance: "far_positions",
    OverflowingPosition: "far_positions",
    KeepsContexts: "memory_leaks",
    ZeroBias: "position_effect",
    OneHeadLearns: "finite_differences",
    DoubleGradient: "finite_differences",
    SharedByCopies: "deepcopy",
    IgnoresOption: "options",
    ChangesPositions: "position_ids",
}


@pytest.fixture
def registered() -> Iterator[Callable[[type[hf_posenc.Scheme]], str]]:
    """Register a scheme as its author would, and remove it after the test."""
    names: list[str] = []

    def register(scheme: type[hf_posenc.Scheme]) -> str:
        names.append(f"planted_{scheme.__name__.lower()}")
        hf_posenc.register_scheme(names[-1])(scheme)
        return names[-1]

    yield register
    for name in names:
        registry._SCHEMES.pop(name, None)
        registry._CLASSES.pop(name, None)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model("llama").save_pretrained(folder)
    return folder


def check(call: Callable, checkpoint: Path, name: str, chosen: set[str]) -> tuple[int, set[str]]:
    """Exit code, and the names of the failed checks."""
    words = [word for check in chosen for word in ("--check", check)]
    answer = call("check", "-m", str(checkpoint), "-s", name, "-f", "4", "--json", *words)
    assert answer.out, answer.err
    return answer.code, {row["check"] for row in answer.data if row["failed"]}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda scheme: scheme.__name__)
def test_the_check_is_named(
    bug: type[hf_posenc.Scheme], call: Callable, checkpoint: Path, registered: Callable
) -> None:
    code, failed = check(call, checkpoint, registered(bug), {*QUICK, PLANTED[bug]})
    assert code == 4
    assert PLANTED[bug] in failed, failed
    assert not failed & {"unpatch", "second_patch"}


@pytest.mark.parametrize("correct", [Slope, Learned, DoublePrecisionBias])
def test_every_check_passes_without_a_bug(
    correct: type, call: Callable, checkpoint: Path, registered: Callable
) -> None:
    """Control, with all checks."""
    assert check(call, checkpoint, registered(correct), set()) == (0, set())


def test_an_unknown_check(call: Callable, checkpoint: Path) -> None:
    answer = call("check", "-m", str(checkpoint), "-s", "alibi", "--check", "cach")
    assert answer.code == 2
    assert "There is no check 'cach'" in answer.err
    assert "'cache'" in answer.err
