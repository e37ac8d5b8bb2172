"""Shapes, lengths and rotation of a model, as plain values for schemes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True)
class Rotation:
    """A rotation of pairs of channels by position.

    Attributes:
        frequencies: radians per token of each rotated pair, fastest first. Python floats: they are hashable, survive
            every cast of the model, and no buffer can go stale. A tensor ``[pairs]`` where they are learned.
        layout: ``half`` pairs channel m with m + n (Llama, NeoX), ``interleaved`` 2m with 2m + 1 (GPT-J, the papers).
        axes: which coordinate of a token rotates each pair; None where there is one, its position.
        decay: a_m per token: channels are scaled by e^(a_m · decay steps), which are ≤ 0 for queries; empty for none.
        values: whether values are rotated as keys are.
        amplitude: factor of cosines and sines, and so of the rotated channels alone.
        by_head: factor of the positions for each query head, as the region has it (`Region`); empty in a scheme's own.
    """

    frequencies: tuple[float, ...] | Tensor
    layout: Layout = "half"
    axes: tuple[int, ...] | None = None
    decay: tuple[float, ...] = ()
    values: bool = False
    amplitude: float = 1.0
    by_head: tuple[float, ...] | Tensor = ()

    @property
    def learned(self) -> bool:
        """Whether the frequencies, or the factors of the heads, are parameters."""
        return not (isinstance(self.frequencies, tuple) and isinstance(self.by_head, tuple))

    @property
    def differs_by_head(self) -> bool:
        """Whether heads are rotated differently, so that query heads of a group share no keys."""
        return len(self.by_head) > 0

    @property
    def numbers(self) -> tuple[float, ...]:
        """The frequencies, learned or not, as numbers."""
        own = self.frequencies
        return own if isinstance(own, tuple) else tuple(own.detach().double().tolist())

    @property
    def dims(self) -> int:
        """Rotated channels of a head, its first ones; the others are unchanged."""
        return 2 * len(self.frequencies)


def geometric(base: float, dims: int) -> tuple[float, ...]:
    """RoPE's own frequencies: ω_m = base^(−2m / dims), m = 0 … dims/2 − 1."""
    return tuple(base ** (-2 * m / dims) for m in range(dims // 2))


@dataclass(frozen=True)
class HostRotary:
    """The rotation of an unpatched model.

    Attributes:
        rotation: as its configuration describes it, scaling included. It defines how many channels of a head are
            rotated (``rotation.dims``) and in which layout; schemes use the same.
        base: RoPE's θ.
        logit_scale: factor of every logit by that scaling. Where only a part of each head is rotated, transformers
            scales that part alone, and the rotation has an ``amplitude`` instead.
        axes: which coordinate of a token rotates each pair where a call gives several (M-RoPE); None where it has one.
        scales_softmax: whether ``mscale_all_dim`` of a scaling multiplies every logit, too, as in DeepSeek's MLA.
    """

    rotation: Rotation
    base: float
    logit_scale: float = 1.0
    axes: tuple[int, ...] | None = None
    scales_softmax: bool = False

    def rotates_by_axes(self, rotation: Rotation) -> bool:
        """Whether another rotation of these pairs can follow several coordinates as the model's own does."""
        alike = (rotation.dims, rotation.layout) == (self.rotation.dims, self.rotation.layout)
        return self.axes is not None and rotation.axes is None and alike and not rotation.decay


@dataclass(frozen=True)
class LayerKind:
    """What a layer has of its own.

    Attributes:
        heads: of queries.
        kv_heads: of keys and values.
        head_dim: channels of a head.
        rotary: rotation; None where queries and keys are not rotated.
        window: how many keys a query sees; None for all before it.
        chunk: length of the parts of a text that see nothing of each other (Llama 4); None for one.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: HostRotary | None = None
    window: int | None = None
    chunk: int | None = None

    @property
    def sees_all(self) -> bool:
        """Whether a query sees all keys before it."""
        return self.window is None and self.chunk is None

    def __str__(self) -> str:
        if self.rotary is None:
            words = "unrotated"
        else:
            rotation = self.rotary.rotation
            part = "" if rotation.dims == self.head_dim else f" {rotation.dims}/{self.head_dim}"
            words = f"RoPE{part} θ {self.rotary.base:,.0f}" + (", interleaved" * (rotation.layout == "interleaved"))
        words += f", window {self.window:,}" if self.window else ""
        return words + (f", chunks of {self.chunk:,}" if self.chunk else "")


@dataclass(frozen=True)
class Geometry:
    """Adapter → scheme: the shapes of a model and the lengths of a patch.

    Attributes:
        heads: of queries, in each layer.
        kv_heads: of keys and values; a divisor of ``heads``.
        head_dim: channels of a head, rotated or not.
        width: channels of a token between the layers.
        layers: number of attention layers.
        causal: whether tokens attend to earlier ones only.
        trained_length: tokens of the sequences that the weights were trained on (pre-training context length).
        target_length: tokens that the patched model should reach.
        rotary: the model's own rotation, if it has one.
        table: rows of its learned position table, if it has one.
        slopes: one a head, if it adds a linear bias (ALiBi) of its own to the scaled scores: −slope · distance.
        biased: whether it adds another bias of the distance to its scores by itself, which it has learned.
        kinds: what each layer has of its own, where layers differ; empty where they do not.
        mixes_otherwise: whether layers without attention carry order, too: state-space, linear and convolution layers.
        on_host: whether schemes that stretch a rotation start from the model's own frequencies, with any scaling that
            these have, rather than from unscaled ones: in ``"host+yarn"`` and its like.
        embedding_width: channels of a token where positions are added to it, if those are not ``width``.
    """

    heads: int
    kv_heads: int
    head_dim: int
    width: int
    layers: int
    causal: bool
    trained_length: int
    target_length: int
    rotary: HostRotary | None = None
    table: int | None = None
    slopes: tuple[float, ...] | None = None
    biased: bool = False
    kinds: tuple[LayerKind, ...] = ()
    mixes_otherwise: bool = False
    on_host: bool = False
    embedding_width: int | None = None

    @property
    def code_width(self) -> int:
        """Channels of a position code that is added to the embeddings."""
        return self.width if self.embedding_width is None else self.embedding_width

    def of_layer(self, layer: int) -> Geometry:
        """The geometry as a scheme of one layer sees it: with that layer's heads and rotation."""
        if not self.kinds:
            return self
        own = self.kinds[layer]
        its = replace(self, heads=own.heads, kv_heads=own.kv_heads, head_dim=own.head_dim, rotary=own.rotary)
        return self if its == self else its

    def is_local(self, layer: int) -> bool:
        """Whether a layer needs no scheme to reach further: it sees some of the keys, or does not rotate them."""
        own = self.kinds[layer] if self.kinds else None
        return own is not None and (not own.sees_all or self.is_unrotated(layer))

    def is_unrotated(self, layer: int) -> bool:
        """Whether a layer of a model that rotates queries and keys leaves them as they are."""
        own = self.kinds[layer] if self.kinds else None
        return own is not None and own.rotary is None and self.rotary is not None

    @property
    def relative(self) -> bool:
        """Whether the model's own attention depends on distances: it rotates, or adds a bias."""
        return self.rotary is not None or self.slopes is not None or self.biased

    @property
    def factor(self) -> float:
        """Target length over trained length, at least 1."""
        return self.target_length / self.trained_length

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that the model itself rotates; all of them where it does not rotate."""
        return self.head_dim if self.rotary is None else self.rotary.rotation.dims
