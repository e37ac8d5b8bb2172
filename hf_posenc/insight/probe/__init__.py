"""Attention probe: where the heads of a trained model attend, which use position, and how much context it uses."""

from hf_posenc.insight.probe.attention_profile import Profile
from hf_posenc.insight.probe.loss_by_context import LossByContext
from hf_posenc.insight.probe.run import Probe, probe
from hf_posenc.insight.probe.variant import Head, Variant

__all__ = ["Head", "LossByContext", "Probe", "Profile", "Variant", "probe"]
