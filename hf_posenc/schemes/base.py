"""The interface of a scheme: a scheme overrides the hooks of what it changes.

The arguments and results of the hooks are the contract with all other packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from hf_posenc.core.context import PositionContext, check_table_rows
from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.core.regions import EVERYTHING, ONE_REGION, Band, Region
from hf_posenc.core.terms import Bias, RowRotation, Terms, ValueBias
from hf_posenc.schemes.memo import Memoizing

if TYPE_CHECKING:
    from hf_posenc.core.record import SchemeRecord

POSITION_HOOKS = (
    *("embed", "read_table", "rotation", "row_rotation", "regions", "prepare", "extra_key_channels"),
    *("bias", "values", "query_scale", "row_scale", "logit_scale", "sink", "visible"),
)
"""Hooks through which positions reach the output. The others act on training or eviction."""


class Scheme(Memoizing):
    """A positional scheme: how positions enter a transformer.

    A scheme is constructed from a `Geometry` and keyword options. Options are explicit and typed, and ``config.json``
    stores them. Learned parameters are ordinary submodules or parameters. Tensors that can be computed are no buffers.

    Class attributes:
        record: set by `hf_posenc.register_scheme`.
        formula: LaTeX of the formulas in the module's docstring, for the scheme's page. ``hf-posenc info`` shows it if
            the docstring has no formula. A blank line separates blocks. Not inherited.
        replaces_host: whether the model's own positions (RoPE, the learned table) are switched off. Score biases, input
            codes and rotations replace them; remaps, temperatures and masks work on top of them.
        needs_causal: defined only for decoders.
        later_keys: whether a decoder's scores are defined for keys after the query, which the caller's mask may show.
        sums_gates: whether a score sums gates of all tokens between query and key, which such a mask may hide.
        needs_rotation: defined only if the model or another scheme rotates queries and keys.
        needs_relative: defined only if scores depend on distance, by a rotation or a bias.
        needs_function: defined only if no position table is read, because its positions may be fractional.
        whole_positions: defined at whole positions only, because a table has no values between its rows.
        needs_table: defined only on a model with a learned position table.
        chooses_keys: whether the scheme decides which keys are visible.
        silent_at_first: whether its bias or its sink has no effect until it is trained.
        recipe: whether it is a training recipe, which changes positions in training mode only.
        stretches: whether it stretches a rotation to a longer context. It can then start from the model's own
            frequencies: ``"host+yarn"``.
        shared: whether one instance serves all layers, or each layer has its own parameters.
        sharing_option: option whose value may ask for parameters that all layers share.
        option_aliases: other names of options, used in some papers.
        idle: hooks of the class that this instance does not use, because of its options.
        changed_options: options of this instance that differ from their defaults.
    """

    record: ClassVar[SchemeRecord]
    formula: ClassVar[str] = ""
    replaces_host: bool = True
    needs_rotation: ClassVar[bool] = False
    needs_causal: ClassVar[bool] = False
    later_keys: ClassVar[bool] = True
    sums_gates: ClassVar[bool] = False
    chooses_keys: ClassVar[bool] = False
    needs_relative: ClassVar[bool] = False
    needs_function: ClassVar[bool] = False
    whole_positions: ClassVar[bool] = False
    needs_table: ClassVar[bool] = False
    recipe: ClassVar[bool] = False
    stretches: ClassVar[bool] = False
    shared: bool = True
    silent_at_first: bool = False
    sharing_option: ClassVar[str] = ""
    option_aliases: ClassVar[dict[str, str]] = {}
    idle: frozenset[str] = frozenset()
    changed_options: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.geometry = geometry

    def reset_parameters(self) -> None:
        """(Re)initialise learned parameters; called after construction on real tensors."""

    def keep_layer(self, layer: int) -> None:
        """Drop parameters of other layers: this instance serves one layer."""

    # -- the hooks ---------------------------------------------------------------------------------------------------

    def embed(self, positions: Tensor) -> Tensor | None:
        """Vector added to the token embedding: ``[batch or 1, query]`` to ``[batch or 1, query, width]``."""
        return None

    def read_table(self, table: Tensor, positions: Tensor) -> Tensor:
        """Codes ``[…, width]`` of ``positions […]`` from the model's own table ``[rows, width]``, if that is kept."""
        check_table_rows(positions, len(table), "learned")
        return nn.functional.embedding(positions, table)

    def reposition(self, positions: Tensor, *, training: bool) -> Tensor:
        """Change positions ``[batch or 1, query]``, whole or fractional; called once per forward pass."""
        return positions

    def rotation(self) -> Rotation | None:
        """The rotation of queries and keys by position."""
        return None

    def retune(self, rotation: Rotation) -> Rotation:
        """Change the rotation of the model or of the composition, which includes any scaling."""
        return rotation

    def coordinates(self, positions: Tensor, given: Tensor | None) -> Tensor:
        """Coordinates ``[…, axes]`` of tokens at ``positions […]``; ``given`` are the caller's coordinates, or None."""
        raise NotImplementedError

    def row_rotation(self) -> RowRotation | None:
        """A rotation that depends on the sequence length at each query; keys are then cached unrotated."""
        return None

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """Disjoint sets of queries and keys, each with its own positions; by default one set, positions unchanged."""
        return ONE_REGION

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Change queries and keys, each ``[batch, heads, position, head_dim]``, before they are rotated.

        Each token is changed by itself. Queries and keys may become wider (`key_width`).
        """
        return query, key

    def extra_key_channels(self, ctx: PositionContext) -> Tensor | None:
        """Channels to cache with every new key, ``[batch, kv_heads, query, channels]``.

        `ctx.extra_key_channels` holds the channels of all keys, cached ones included.
        """
        return None

    def bias(self, ctx: PositionContext) -> Bias | None:
        """Bias added to the scaled scores."""
        return None

    def values(self, ctx: PositionContext) -> ValueBias | None:
        """Term added to the attention output."""
        return None

    def query_scale(self, ctx: PositionContext) -> Tensor | None:
        """Factor of each query before biases are added, ``[batch or 1, query]``."""
        return None

    def row_scale(self, ctx: PositionContext) -> Tensor | None:
        """Factor of each query's scores, biases included, ``[batch or 1, heads or 1, query]``."""
        return None

    def logit_scale(self) -> float:
        """Factor of every score."""
        return 1.0

    def sink(self) -> Tensor | None:
        """Score of one extra key without a value, ``[heads]``."""
        return None

    def visible(self) -> Band:
        """The band of distances that are visible."""
        return EVERYTHING

    def native(self) -> dict[str, Any] | None:
        """transformers' own ``rope_parameters`` for the same rotation; None if there are none."""
        return None

    def native_within_trained(self) -> dict[str, Any] | None:
        """transformers' ``rope_parameters`` for a rotation that is the same only up to the trained length, or None."""
        return None

    def native_window(self) -> int | None:
        """Number of keys that a query sees, as transformers' ``sliding_window``; None for all schemes but a window."""
        return None

    @property
    def key_width(self) -> int:
        """Channels of each query and key that `prepare` returns."""
        return self.geometry.head_dim

    @property
    def kept_keys(self) -> tuple[int, int] | None:
        """``(first, last)``: how many of the oldest and of the newest keys a cache needs to hold; None for all."""
        return None

    @property
    def caches_one_key(self) -> bool:
        """Whether a KV cache holds one copy of each key although regions rotate keys differently.

        The keys of other regions are then rotated from it when they are read. This is possible if all regions have
        the scheme's own rotation by position.
        """
        return False

    @property
    def needs_whole_text(self) -> bool:
        """Whether a token's position depends on its sequence length, so that a sequence cannot be continued."""
        return False

    @property
    def randomises(self) -> bool:
        """Whether positions are drawn at random in evaluation as well."""
        return False

    @property
    def keeps_table(self) -> bool:
        """Whether the model's learned table stays in use although the scheme replaces the model's positions."""
        return False

    @classmethod
    def comparison_options(cls, *, factor: float, trained_length: int) -> dict[str, Any]:
        """Options that a comparison sets, unless its user does, for an extension by ``factor``.

        They replace defaults that follow the literature's definition, but are not the setting to compare schemes with.
        """
        return {}

    # -- what the effect probe relies on -------------------------------------------------------------------------------

    @property
    def unchanged_below(self) -> int:
        """Position below which outputs are exactly those of the unpatched model; 0 gives no guarantee."""
        return 0

    @property
    def longest(self) -> int | None:
        """Number of positions the scheme is defined for; None for no limit."""
        return None

    # -- combined ----------------------------------------------------------------------------------------------------

    def terms(self, ctx: PositionContext) -> Terms:
        """Combine the results of the hooks for one attention call into one value."""
        bias, values = self.bias(ctx), self.values(ctx)
        return Terms(
            bias=() if bias is None else (bias,),
            values=() if values is None else (values,),
            query_scale=self.query_scale(ctx),
            row_scale=self.row_scale(ctx),
            logit_scale=self.logit_scale(),
            regions=self.regions(ctx),
            visible=self.visible(),
            row_rotation=self.row_rotation(),
            sink=self.sink(),
        )

    @property
    def schemes(self) -> list[Scheme]:
        """The schemes of a composition; otherwise this scheme alone."""
        return [self]

    @property
    def shown_name(self) -> str:
        """Name in messages, as a user writes it."""
        return self.record.name

    def extra_repr(self) -> str:
        lengths = {name: getattr(self.geometry, name) for name in ("trained_length", "target_length")}
        shown = {"factor": float(f"{self.geometry.factor:g}"), **lengths, **self.changed_options}
        return ", ".join((self.shown_name, *(f"{name}={value!r}" for name, value in shown.items())))


def implements(scheme: Scheme, hook: str) -> bool:
    """Whether the scheme, or a part of its composition, overrides a hook."""
    return scheme.memoized(hook, lambda: any(overrides(part, hook) for part in scheme.schemes))


def overrides(scheme: Scheme, hook: str) -> bool:
    """Whether the scheme's class overrides a hook, and its options use it."""
    return hook not in scheme.idle and getattr(type(scheme), hook) is not getattr(Scheme, hook)
