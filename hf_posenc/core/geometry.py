"""Shapes, lengths and rotation of a model, as frozen values for schemes."""

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
        frequencies: radians per token of each rotated pair, fastest first. Python floats are hashable, survive casts of
            the model, and need no buffer. A tensor ``[pairs]`` if they are learned.
        layout: ``half`` pairs channel m with m + n (Llama, NeoX), ``interleaved`` 2m with 2m + 1 (GPT-J, the papers).
        axes: index of the coordinate that rotates each pair; None if tokens have one coordinate, their position.
        decay: a_m per token: channels are scaled by e^(a_m · decay steps), with steps ≤ 0 for queries; empty for none.
        values: whether values are rotated like keys.
        amplitude: factor of cosines and sines, and so of the rotated channels alone.
        by_head: factor of the positions for each query head, from the `Region`; empty in a scheme's own rotation.
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
        """Whether the frequencies or the head factors are parameters."""
        return not (isinstance(self.frequencies, tuple) and isinstance(self.by_head, tuple))

    @property
    def differs_by_head(self) -> bool:
        """Whether heads are rotated differently, so that query heads of a group share no keys."""
        return len(self.by_head) > 0

    @property
    def numbers(self) -> tuple[float, ...]:
        """The frequencies as Python floats, even if they are learned."""
        frequencies = self.frequencies
        return frequencies if isinstance(frequencies, tuple) else tuple(frequencies.detach().double().tolist())

    @property
    def dims(self) -> int:
        """Number of rotated channels of a head, which are its first ones."""
        return 2 * len(self.frequencies)


def geometric(base: float, dims: int) -> tuple[float, ...]:
    """Frequencies of RoPE: ω_m = base^(−2m / dims), m = 0 … dims/2 − 1."""
    return tuple(base ** (-2 * m / dims) for m in range(dims // 2))


@dataclass(frozen=True)
class HostRotary:
    """The rotation of an unpatched model.

    Attributes:
        rotation: rotation of the configuration, with its scaling. It defines the number of rotated channels of a head
            (``rotation.dims``) and their layout, which schemes keep.
        base: RoPE's θ.
        logit_scale: factor of every logit by that scaling. If only a part of each head is rotated, transformers scales
            this part alone, and the rotation has an ``amplitude`` instead.
        axes: index of the coordinate that rotates each pair, if calls can have several axes (M-RoPE); else None.
        scales_softmax: whether ``mscale_all_dim`` of a scaling also multiplies every logit, as in DeepSeek's MLA.
    """

    rotation: Rotation
    base: float
    logit_scale: float = 1.0
    axes: tuple[int, ...] | None = None
    scales_softmax: bool = False

    def rotates_by_axes(self, rotation: Rotation) -> bool:
        """Whether another rotation of the same pairs can follow the axes of the model."""
        same_pairs = (rotation.dims, rotation.layout) == (self.rotation.dims, self.rotation.layout)
        return self.axes is not None and rotation.axes is None and same_pairs and not rotation.decay


@dataclass(frozen=True)
class LayerKind:
    """Shapes, rotation and visible keys of one layer, for models whose layers differ.

    Attributes:
        heads: number of query heads.
        kv_heads: number of key and value heads.
        head_dim: channels of a head.
        rotary: rotation of the layer; None if it does not rotate queries and keys.
        window: number of keys that a query sees; None for all keys before it.
        chunk: length of the chunks that the layer attends within (Llama 4); None for the whole text.
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
            words = f"RoPE{part} θ {self.rotary.base:,.0f}"
            words += ", interleaved" if rotation.layout == "interleaved" else ""
        words += f", window {self.window:,}" if self.window else ""
        return words + (f", chunks of {self.chunk:,}" if self.chunk else "")


@dataclass(frozen=True)
class Geometry:
    """Shapes of a model and lengths of a patch: the input of a scheme's constructor.

    Attributes:
        heads: number of query heads in each layer.
        kv_heads: number of key and value heads; a divisor of ``heads``.
        head_dim: channels of a head, rotated or not.
        width: channels of a token between the layers.
        layers: number of attention layers.
        causal: whether tokens attend to earlier ones only.
        trained_length: length of the training sequences in tokens (pre-training context length).
        target_length: length in tokens that the patched model should reach.
        rotary: the model's own rotation, if it has one.
        table: number of rows of the model's learned position table, if it has one.
        slopes: one per head, if the model itself adds a linear bias (ALiBi) to the scaled scores: −slope · distance.
        biased: whether the model itself adds another, learned bias of the distance to its scores.
        kinds: one per layer if layers differ; else empty.
        mixes_otherwise: whether layers without attention carry order, too: state-space, linear and convolution layers.
        on_host: whether schemes that stretch a rotation start from the model's own frequencies with their scaling, as
            in ``"host+yarn"``, instead of unscaled frequencies.
        embedding_width: channels of the embeddings that positions are added to, if it differs from ``width``.
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
        """The geometry for a scheme of one layer, with the heads and rotation of that layer."""
        if not self.kinds:
            return self
        kind = self.kinds[layer]
        own = replace(self, heads=kind.heads, kv_heads=kind.kv_heads, head_dim=kind.head_dim, rotary=kind.rotary)
        return self if own == self else own

    def is_local(self, layer: int) -> bool:
        """Whether a layer reaches further without a scheme: it sees only some keys, or does not rotate them."""
        return bool(self.kinds) and (not self.kinds[layer].sees_all or self.is_unrotated(layer))

    def is_unrotated(self, layer: int) -> bool:
        """Whether a layer does not rotate queries and keys although the model does."""
        return bool(self.kinds) and self.kinds[layer].rotary is None and self.rotary is not None

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
        """Number of channels of a head that the model itself rotates; all channels if it does not rotate."""
        return self.head_dim if self.rotary is None else self.rotary.rotation.dims
