"""What a trained model does with position: where its heads look, which of them care, how much text it makes use of."""

from hf_posenc.probing.heads import Head
from hf_posenc.probing.probing import Probe, probe
from hf_posenc.probing.profile import Profile
from hf_posenc.probing.reading import Reading
from hf_posenc.probing.side import Side

__all__ = ["Head", "Probe", "Profile", "Reading", "Side", "probe"]
