"""All names that authors of schemes and adapters need, in one module.

>>> from hf_posenc.extend import Geometry, PositionContext, Positive, Scheme, ToeplitzBias, register_scheme
>>> from hf_posenc.extend import Adapter, PatchedAttention, register_adapter

docs/add-scheme.md and docs/add-model.md explain them. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_posenc.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hf_posenc.core.context import PositionContext as PositionContext
    from hf_posenc.core.context import Projections as Projections
    from hf_posenc.core.context import check_table_rows as check_table_rows
    from hf_posenc.core.geometry import Geometry as Geometry
    from hf_posenc.core.geometry import HostRotary as HostRotary
    from hf_posenc.core.geometry import LayerKind as LayerKind
    from hf_posenc.core.geometry import Layout as Layout
    from hf_posenc.core.geometry import Rotation as Rotation
    from hf_posenc.core.geometry import geometric as geometric
    from hf_posenc.core.record import SchemeRecord as SchemeRecord
    from hf_posenc.core.regions import Band as Band
    from hf_posenc.core.regions import Region as Region
    from hf_posenc.core.terms import Bias as Bias
    from hf_posenc.core.terms import Block as Block
    from hf_posenc.core.terms import BlockBias as BlockBias
    from hf_posenc.core.terms import KeyBias as KeyBias
    from hf_posenc.core.terms import RowRotation as RowRotation
    from hf_posenc.core.terms import ShiftedQuery as ShiftedQuery
    from hf_posenc.core.terms import Terms as Terms
    from hf_posenc.core.terms import ToeplitzBias as ToeplitzBias
    from hf_posenc.core.terms import ValueBias as ValueBias
    from hf_posenc.errors import AdapterInvalid as AdapterInvalid
    from hf_posenc.errors import OptionOutOfRange as OptionOutOfRange
    from hf_posenc.errors import PosEncError as PosEncError
    from hf_posenc.errors import UnsupportedModel as UnsupportedModel
    from hf_posenc.forward.attention import PatchedAttention as PatchedAttention
    from hf_posenc.patches.adapter import Adapter as Adapter
    from hf_posenc.patches.adapter import causal_mask as causal_mask
    from hf_posenc.patches.adapter import eager_mask as eager_mask
    from hf_posenc.patches.registry import register_adapter as register_adapter
    from hf_posenc.patches.shared.position_table import SchemePositionTable as SchemePositionTable
    from hf_posenc.patches.shared.rotary_host import AddsPositionCode as AddsPositionCode
    from hf_posenc.patches.shared.rotary_host import DisabledRotary as DisabledRotary
    from hf_posenc.patches.shared.rotary_host import as_configured as as_configured
    from hf_posenc.patches.shared.rotary_host import host_rotary as host_rotary
    from hf_posenc.schemes.base import Scheme as Scheme
    from hf_posenc.schemes.base import implements as implements
    from hf_posenc.schemes.options import AtLeastOne as AtLeastOne
    from hf_posenc.schemes.options import AtLeastTwo as AtLeastTwo
    from hf_posenc.schemes.options import Base as Base
    from hf_posenc.schemes.options import Fraction as Fraction
    from hf_posenc.schemes.options import NotNegative as NotNegative
    from hf_posenc.schemes.options import NotNegativeInt as NotNegativeInt
    from hf_posenc.schemes.options import Positive as Positive
    from hf_posenc.schemes.options import PositiveInt as PositiveInt
    from hf_posenc.schemes.options import Share as Share
    from hf_posenc.schemes.options import UnitInterval as UnitInterval
    from hf_posenc.schemes.registry import register_scheme as register_scheme
    from hf_posenc.schemes.rotary.rotary import Rotary as Rotary

__getattr__, __dir__, __all__ = lazy_exports(__name__)
