"""Attention probe: where the heads of a trained model attend, and which of them use position."""

from hf_posenc.insight.probe.attention_profile import Profile
from hf_posenc.insight.probe.run import Probe, probe
from hf_posenc.insight.probe.variant import Head, Variant

__all__ = ["Head", "Probe", "Profile", "Variant", "probe"]
