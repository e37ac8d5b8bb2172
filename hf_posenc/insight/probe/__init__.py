"""What a trained model does with position: where its heads look, which of them care, how much text it makes use of."""

from hf_posenc.insight.probe.attention_profile import Profile
from hf_posenc.insight.probe.heads import Head
from hf_posenc.insight.probe.loss_by_context import LossByContext
from hf_posenc.insight.probe.run import Probe, probe
from hf_posenc.insight.probe.variant import Variant

__all__ = [
    "Head",
    "LossByContext",
    "Probe",
    "Profile",
    "Variant",
    "probe",
]
