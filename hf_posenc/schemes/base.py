"""The interface of a scheme: hooks that a scheme overrides where it changes something.

What its hooks take and return is the contract with all other packages.
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
from hf_posenc.schemes.kept_answers import KeepsAnswers

if TYPE_CHECKING:
    from hf_posenc.core.record import SchemeRecord


class Scheme(KeepsAnswers):
    """A positional scheme: how positions enter a transformer.

    Constructed from a `Geometry` and keyword options; the options are explicit, typed, and what ``config.json`` stores.
    Learned parameters are ordinary submodules or parameters; tensors that can be computed are never buffers.

    Class attributes:
        record: set by `hf_posenc.register_scheme`.
        formula: LaTeX of the formulas in the module's docstring, for its page. ``hf-posenc info`` shows it where the
            docstring has no formula. A blank line separates blocks. Not inherited.
        replaces_host: whether the model's own positions (RoPE, the learned table) are switched off. Score biases, input
            codes and rotations replace them; remaps, temperatures and masks work on top of them.
        needs_causal: defined only for decoders.
        later_keys: whether a decoder's scores are defined for keys after the query, which a caller's own mask may show.
        sums_gates: whether a score sums gates of all tokens between query and key, which such a mask may hide.
        needs_rotation: defined only where queries and keys are rotated, by the model or by another scheme.
        needs_relative: defined only where scores depend on distance, by a rotation or a bias.
        needs_function: defined only where no position table is read, as its positions may be fractional.
        needs_table: defined only on a model with a learned position table.
        chooses_keys: whether it decides which keys are visible.
        silent_at_first: whether its bias, or its sink, has no effect until it is trained.
        recipe: whether it is a training recipe, which changes positions in training mode only.
        stretches: whether it stretches a rotation to a longer context, and so can start from the model's own
            frequencies: ``"host+yarn"``.
        shared: whether one instance serves all layers, or each layer has its own parameters.
        option_aliases: other names of options, as some papers have them.
        idle: hooks of the class that the options of this instance leave unused.
        changed_options: options that this instance was built with, where they differ from their defaults.
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
    needs_table: ClassVar[bool] = False
    recipe: ClassVar[bool] = False
    stretches: ClassVar[bool] = False
    shared: bool = True
    silent_at_first: bool = False
    option_aliases: ClassVar[dict[str, str]] = {}
    idle: frozenset[str] = frozenset()
    changed_options: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.geometry = geometry

    def reset_parameters(self) -> None:
        """(Re)initialise learned parameters; called after construction on real tensors."""

    # -- the hooks ---------------------------------------------------------------------------------------------------

    def embed(self, positions: Tensor) -> Tensor | None:
        """Vector added to the token embedding: ``[batch or 1, query]`` to ``[batch or 1, query, width]``."""
        return None

    def read_table(self, table: Tensor, positions: Tensor) -> Tensor:
        """Read the model's own table ``[rows, width]`` at ``positions […]``, where it is kept: ``[…, width]``."""
        check_table_rows(positions, len(table), "learned")
        return nn.functional.embedding(positions, table)

    def reposition(self, positions: Tensor, *, training: bool) -> Tensor:
        """Change positions ``[batch or 1, query]``, whole or fractional; called once a forward pass, for all layers."""
        return positions

    def rotation(self) -> Rotation | None:
        """How queries and keys are rotated by position."""
        return None

    def retune(self, rotation: Rotation) -> Rotation:
        """Change the rotation of the model or of the composition, any scaling included."""
        return rotation

    def coordinates(self, positions: Tensor, given: Tensor | None) -> Tensor:
        """Coordinates ``[…, axes]`` of tokens at ``positions […]``; ``given`` are the caller's own."""
        raise NotImplementedError

    def row_rotation(self) -> RowRotation | None:
        """A rotation that depends on the sequence length at each query; keys are then cached unrotated."""
        return None

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """Disjoint sets of queries and keys, each with its own positions; by default one set, positions unchanged."""
        return ONE_REGION

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Change queries and keys, each ``[batch, heads, position, head_dim]``, before they are rotated.

        Each token by itself; both may become wider (`key_width`).
        """
        return query, key

    def extra_key_channels(self, ctx: PositionContext) -> Tensor | None:
        """Channels to cache with every new key, ``[batch, kv_heads, query, channels]``.

        `ctx.extra_key_channels` has those of all keys.
        """
        return None

    def bias(self, ctx: PositionContext) -> Bias | None:
        """Bias added to the scaled scores."""
        return None

    def values(self, ctx: PositionContext) -> ValueBias | None:
        """Term added to the mixed values."""
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
        """Score of one more key that has no value, ``[heads]``."""
        return None

    def visible(self) -> Band:
        """The band of distances that are visible."""
        return EVERYTHING

    def native(self) -> dict[str, Any] | None:
        """transformers' own ``rope_parameters`` for the same rotation; None where it has none."""
        return None

    def native_within_trained(self) -> dict[str, Any] | None:
        """transformers' own ``rope_parameters`` for the same rotation up to the trained length, and another beyond."""
        return None

    def native_window(self) -> int | None:
        """Keys that a query sees, as transformers' ``sliding_window``; None for all but a plain window."""
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

        The copies of other regions are then rotated from it when they are read, which is possible where all regions
        have the scheme's own rotation by position.
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
        """Options that a comparison sets where its user gives none, for an extension by ``factor``.

        For options whose defaults are the literature's definition, and not what other schemes are compared with.
        """
        return {}

    # -- what the effect probe relies on -------------------------------------------------------------------------------

    @property
    def unchanged_below(self) -> int:
        """Position under which outputs are exactly those of the unpatched model; 0 is no guarantee."""
        return 0

    @property
    def longest(self) -> int | None:
        """Number of positions the scheme is defined for; None where there is no limit."""
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
        """The name in messages, as a user writes it."""
        return self.record.name

    def extra_repr(self) -> str:
        lengths = {name: getattr(self.geometry, name) for name in ("trained_length", "target_length")}
        shown = {"factor": float(f"{self.geometry.factor:g}"), **lengths, **self.changed_options}
        return ", ".join((self.shown_name, *(f"{name}={value!r}" for name, value in shown.items())))


def implements(scheme: Scheme, hook: str) -> bool:
    """Whether the scheme, or one of its composition, overrides a hook."""
    return scheme.keep(hook, lambda: any(overrides(part, hook) for part in scheme.schemes))


def overrides(scheme: Scheme, hook: str) -> bool:
    """Whether the scheme's class overrides a hook, and its options use it."""
    return hook not in scheme.idle and getattr(type(scheme), hook) is not getattr(Scheme, hook)
