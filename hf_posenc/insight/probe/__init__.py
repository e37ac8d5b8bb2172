"""Attention probe: where the heads of a trained model attend, which use position, and how much context it uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_posenc.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hf_posenc.insight.probe.attention_profile import Profile as Profile
    from hf_posenc.insight.probe.loss_by_context import LossByContext as LossByContext
    from hf_posenc.insight.probe.run import Probe as Probe
    from hf_posenc.insight.probe.run import probe as probe
    from hf_posenc.insight.probe.variant import Head as Head
    from hf_posenc.insight.probe.variant import Variant as Variant

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "hf_posenc.insight.probe.attention_profile": ("Profile",),
        "hf_posenc.insight.probe.loss_by_context": ("LossByContext",),
        "hf_posenc.insight.probe.run": ("Probe", "probe"),
        "hf_posenc.insight.probe.variant": ("Head", "Variant"),
    },
)
