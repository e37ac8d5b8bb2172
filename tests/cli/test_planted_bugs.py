"""Third-party schemes with one bug each: `hf-posenc check` ends with 4 and names the check that finds the bug."""

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

QUICK = {"unpatch", "second_patch", "effect", "cache", "batch"}  # asked of each, whatever it breaks


class Slope(hf_posenc.Scheme):
    """−distance / 10 for every head: what each bug is planted in, and no bug."""

    def bias(self, ctx: PositionContext) -> Any:
        heads = self.geometry.heads
        return ToeplitzBias(lambda d: -0.1 * d.abs().float().expand(heads, *d.shape))


class OffByOne(Slope):
    """A key is weighed by what the next one says: the mask's edge is one too far."""

    def bias(self, ctx: PositionContext) -> BlockBias:
        def of_block(block: Block) -> Tensor:
            ahead = block.key.mean(-1).roll(-1, dims=-1)
            return ahead.repeat_interleave(block.query.shape[1] // ahead.shape[1], dim=1)[:, :, None].expand_as(
                block.scores
            )

        return BlockBias(of_block)


class KnowsItsPlace(Slope):
    """A bias of distance that is steeper further on."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, steep = self.geometry.heads, 0.01 * (1 + float(ctx.key_positions.min()))
        return ToeplitzBias(lambda d: -steep * d.abs().float().expand(heads, *d.shape))


class CountsTheCall(Slope):
    """A bias by the number of queries at hand, which a cache changes."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, steep = self.geometry.heads, 1 / ctx.query_positions.shape[1]
        return ToeplitzBias(lambda d: -steep * d.abs().float().expand(heads, *d.shape))


class IgnoresPadding(Slope):
    """Keys counted by column, pads and all."""

    def bias(self, ctx: PositionContext) -> KeyBias:
        columns = torch.arange(ctx.key_positions.shape[1], dtype=torch.float64) ** 0.5
        return KeyBias(columns.expand(1, self.geometry.heads, -1))


class RotatesColumns(RoPE):
    """RoPE of the column a key stands in."""

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        return (Region(key_at=lambda places: torch.arange(places.shape[-1])[None].expand_as(places)),)


class WrongType(Slope):
    """A bias in bfloat16, whose steps are as large as what it tells apart."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads = self.geometry.heads
        return ToeplitzBias(lambda d: -0.1 * d.abs().bfloat16().expand(heads, *d.shape))


class Detached(Slope):
    """A learned slope that learns nothing."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.slopes = nn.Parameter(torch.full((geometry.heads,), 0.1))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.slopes, 0.1)

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        slopes = self.slopes.detach()
        return ToeplitzBias(lambda d: -slopes.view(-1, *(1,) * d.ndim) * d.abs())


class Remembers(Slope):
    """A slope of the longest text it has ever met."""

    most = 1

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        self.most = max(self.most, ctx.key_positions.shape[1])
        heads, steep = self.geometry.heads, 1 / self.most
        return ToeplitzBias(lambda d: -steep * d.abs().float().expand(heads, *d.shape))


class CoarseFarOut(RoPE):
    """RoPE of positions in float16, which are whole up to 2048 and end at 65,504."""

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        return (Region(query_at=self.place, key_at=self.place),)

    @staticmethod
    def place(positions: Tensor) -> Tensor:
        return positions.half().float()


class OtherwiseWhenLong(Slope):
    """Another slope from 100 keys on."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, steep = self.geometry.heads, 0.1 if ctx.key_positions.shape[1] < 100 else 0.08
        return ToeplitzBias(lambda d: -steep * d.abs().float().expand(heads, *d.shape))


class InDoublePrecision(Slope):
    """No bug: float64, which every route takes."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads = self.geometry.heads
        return ToeplitzBias(lambda d: -0.1 * d.abs().double().expand(heads, *d.shape))


class WrapsAround(Slope):
    """Distances in 16 bits, which begin anew after 32,767."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads = self.geometry.heads
        return ToeplitzBias(lambda d: -0.1 * d.short().abs().float().expand(heads, *d.shape))


class WrapsPlaces(RoPE):
    """RoPE of positions in 8 bits."""

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        return (Region(query_at=self.place, key_at=self.place),)

    @staticmethod
    def place(positions: Tensor) -> Tensor:
        return positions.to(torch.int8).float()


class Dense(Slope):
    """A bias of every case at once, whatever it was asked for."""

    def bias(self, ctx: PositionContext) -> BlockBias:
        pairs = -0.1 * (ctx.query_positions[:, :, None] - ctx.key_positions[:, None]).abs().float()
        return BlockBias(lambda block: pairs[:, None, block.rows].expand_as(block.scores))


class OneRowFails(Slope):
    """An index that no one-token call has."""

    def bias(self, ctx: PositionContext) -> Any:
        return super().bias(ctx) if ctx.query_positions[0, 1] >= 0 else None


class Draws(Slope):
    """A slope by the throw of a die."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, steep = self.geometry.heads, 0.1 + float(torch.rand(()))
        return ToeplitzBias(lambda d: -steep * d.abs().float().expand(heads, *d.shape))


class KeptBesides(Slope):
    """Slopes drawn at birth, where no checkpoint finds them."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.slopes = torch.rand(geometry.heads)

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        return ToeplitzBias(lambda d: -self.slopes.view(-1, *(1,) * d.ndim) * d.abs())


class Settles(Slope):
    """Whoever comes later computes in float64."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        torch.set_default_dtype(torch.float64)


class Hoards(Slope):
    """Every context is kept."""

    kept: ClassVar[list[PositionContext]] = []

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        self.kept.append(ctx)
        return super().bias(ctx)


class SaysNothing(Slope):
    """A bias of zeros: the host without positions, under another name."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        return ToeplitzBias(lambda d: torch.zeros(self.geometry.heads, *d.shape))


class Learned(Slope):
    """A learned slope a head, and no bug."""

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
    """The gradient ends in the first head."""

    def of_heads(self) -> Tensor:
        return torch.cat((self.slopes[:1], self.slopes[1:].detach()))


class LearnsTwice(Learned):
    """A gradient that counts double."""

    def of_heads(self) -> Tensor:
        return 2 * self.slopes - self.slopes.detach()


class ReadsTheFirst(Learned):
    """A closure made at birth: in a copy of the model it reads the original's slopes."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.of = ToeplitzBias(lambda d, first=self.slopes: -first.view(-1, *(1,) * d.ndim) * d.abs())

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        return self.of


class Forgets(Slope):
    """An option that is checked and never used."""

    def __init__(self, geometry: Geometry, *, slope: Positive = 0.1) -> None:
        super().__init__(geometry)


class CountsOn(Slope):
    """Positions changed in place, for whoever reads them next."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        ctx.key_positions.add_(1)
        return super().bias(ctx)


PLANTED: dict[type[hf_posenc.Scheme], str] = {
    OffByOne: "causality",
    KnowsItsPlace: "shift",
    CountsTheCall: "cache",
    IgnoresPadding: "padding",
    RotatesColumns: "batch",
    WrongType: "precision",
    Detached: "gradients",
    Remembers: "stateless",
    CoarseFarOut: "far_positions",
    Dense: "memory_growth",
    OneRowFails: "padded_decoding",
    Draws: "stateless",
    KeptBesides: "saving",
    Settles: "isolation",
    OtherwiseWhenLong: "long_text",
    WrapsAround: "far_positions",
    WrapsPlaces: "far_positions",
    Hoards: "memory_leaks",
    SaysNothing: "position_effect",
    OneHeadLearns: "finite_differences",
    LearnsTwice: "finite_differences",
    ReadsTheFirst: "deepcopy",
    Forgets: "options",
    CountsOn: "cache",
}


@pytest.fixture
def registered() -> Iterator[Callable[[type[hf_posenc.Scheme]], str]]:
    """Registers a scheme as its author would; forgotten again, so that no other test meets it."""
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
    """A user's own model, in a folder."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model("llama").save_pretrained(folder)
    return folder


def check(call: Callable, checkpoint: Path, name: str, chosen: set[str]) -> tuple[int, set[str]]:
    """Exit code, and the checks that are broken."""
    words = [word for check in chosen for word in ("--check", check)]
    answer = call("check", "-m", str(checkpoint), "-s", name, "-f", "4", "--json", *words)
    assert answer.out, answer.err
    return answer.code, {row["check"] for row in answer.data if row["failed"]}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda scheme: scheme.__name__)
def test_the_law_is_named(bug: type[hf_posenc.Scheme], call: Callable, checkpoint: Path, registered: Callable) -> None:
    code, broken = check(call, checkpoint, registered(bug), {*QUICK, PLANTED[bug]})
    assert code == 4
    assert PLANTED[bug] in broken, broken
    assert not broken & {"unpatch", "second_patch"}


@pytest.mark.parametrize("sound", [Slope, Learned, InDoublePrecision])
def test_without_a_bug_all_laws_hold(sound: type, call: Callable, checkpoint: Path, registered: Callable) -> None:
    """Control, with every check there is."""
    assert check(call, checkpoint, registered(sound), set()) == (0, set())


def test_a_law_that_is_none(call: Callable, checkpoint: Path) -> None:
    answer = call("check", "-m", str(checkpoint), "-s", "alibi", "--check", "cach")
    assert answer.code == 2
    assert "There is no check 'cach'" in answer.err
    assert "'cache'" in answer.err
