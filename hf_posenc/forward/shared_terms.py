"""Terms that all layers of a forward pass share, and terms that all forward passes share.

Sharing is observed, not declared. Terms are evaluated with `PER_LAYER` in place of the values of one layer or of one
forward pass, and are shared if nothing reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypeVar

from hf_posenc.core.context import PositionContext
from hf_posenc.core.regions import Region
from hf_posenc.core.terms import KeyBias, ToeplitzBias
from hf_posenc.core.tracing import is_traced
from hf_posenc.forward.placement import first_with_parameters
from hf_posenc.forward.rotate_decode import DecodeRotation, NoRotation, decode_rotation, stored_region
from hf_posenc.forward.split_terms import SplitTerms
from hf_posenc.schemes.base import Scheme, implements

T = TypeVar("T")


class ReadsLayer(Exception):
    """A value was read that layers, or forward passes, do not share."""


class PerLayer:
    """Placeholder for a value that differs by layer; raises `ReadsLayer` when it is used."""

    def _raise(self, *args: Any, **kwargs: Any) -> Any:
        raise ReadsLayer

    __getattr__ = __getitem__ = __iter__ = __len__ = __contains__ = __bool__ = __call__ = _raise
    __int__ = __float__ = __index__ = __hash__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _raise
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _raise
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _raise
    __neg__ = __abs__ = __invert__ = __and__ = __rand__ = __or__ = __ror__ = _raise

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise ReadsLayer


PER_LAYER: Any = PerLayer()


@dataclass(frozen=True)
class SchemeTraits:
    """Properties of a scheme that hold for every forward pass.

    Attributes:
        learned: whether the scheme has parameters. Then ``terms`` is None, and ``rotation`` is None or `NoRotation`.
        prepares: whether it changes queries and keys before they are rotated.
        extra_channels: whether it caches extra channels with every key.
        caches_one_key: whether it caches one copy of each key, from which the keys of other regions are computed.
        rotation: rotation of decode queries and of the keys to cache, or `NoRotation`; None if regions depend on
            positions, or if the rotation is no single operation.
        terms: terms of the scheme; None if they depend on positions or on a layer, or hold tensors.
    """

    learned: bool
    prepares: bool
    extra_channels: bool
    caches_one_key: bool
    rotation: DecodeRotation | NoRotation | None = None
    terms: SplitTerms | None = None


def scheme_traits(scheme: Scheme, causal: bool) -> SchemeTraits:
    """Properties of a scheme that hold for every forward pass of a decoder (``causal``) or of an encoder."""
    traits = SchemeTraits(
        learned=first_with_parameters(scheme) is not None,
        prepares=implements(scheme, "prepare"),
        extra_channels=implements(scheme, "extra_key_channels"),
        caches_one_key=scheme.caches_one_key,
    )
    if traits.learned or is_traced():
        rotates = any(implements(scheme, hook) for hook in ("rotation", "regions"))
        return traits if rotates else replace(traits, rotation=NoRotation(1))
    ctx = PositionContext(
        query_positions=PER_LAYER, key_positions=PER_LAYER, causal=causal, contiguous=PER_LAYER, real_keys=PER_LAYER,
        hidden=PER_LAYER, extra_key_channels=PER_LAYER, projections=PER_LAYER, layer=PER_LAYER, coordinates=PER_LAYER,
        first=PER_LAYER, kept=PER_LAYER, text_keys=PER_LAYER,
    )  # fmt: skip
    regions = _unless_per_layer(scheme.regions, ctx)
    if regions is None or not all(map(_is_fixed, regions)):
        return traits
    stored = stored_region(regions) if traits.caches_one_key else None
    split = None if traits.extra_channels else _unless_per_layer(shared_terms, scheme, ctx)
    if split is not None:
        tensors = split.query_factor, split.terms.row_scale, split.terms.sink
        if len(split.terms.bias) > 0 or any(tensor is not None for tensor in tensors):
            split = None  # tensors would not move with the model
    return replace(traits, rotation=decode_rotation(regions, scheme.rotation(), stored), terms=split)


def _unless_per_layer(make: Callable[..., T], *args: Any) -> T | None:
    """Result of ``make(*args)``; None if it reads a value of one layer or of one forward pass."""
    try:
        return make(*args)
    except ReadsLayer:
        return None


def shared_terms(scheme: Scheme, ctx: PositionContext) -> SplitTerms | None:
    """Terms of all layers of a forward pass; None if every layer has its own terms.

    Raises:
        ReadsLayer: the terms read a value of one layer, which is `PER_LAYER` in ``ctx``.
    """
    terms = scheme.terms(ctx)
    for bias in terms.bias:
        # A closure is evaluated later and may refer to tensors of one layer; a method of the scheme does not.
        is_closure = isinstance(bias, ToeplitzBias) and not isinstance(bias.of_distance, MethodType)
        if is_closure or not isinstance(bias, (KeyBias, ToeplitzBias)):
            return None
    return SplitTerms.of(terms) if len(terms.values) == 0 else None


def _is_fixed(region: Region) -> bool:
    maps = (region.query_at, region.key_at, region.query_decay_steps, region.key_decay_steps)
    by_band = (region.query_bands_at, region.key_bands_at)
    return all(map(_holds_no_call, maps)) and all(one is None or _holds_no_call(one) for one in by_band)


def _holds_no_call(function: object) -> bool:
    """Whether a function cannot refer to values of the call that made it: it is a method of a scheme or no closure."""
    if isinstance(function, MethodType):
        return isinstance(function.__self__, Scheme)
    return isinstance(function, BuiltinFunctionType) or (
        isinstance(function, FunctionType) and function.__closure__ is None
    )
