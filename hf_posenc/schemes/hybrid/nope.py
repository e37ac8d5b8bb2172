"""NoPE: no positional encoding at all.

    score[i, j] = q_i · k_j / √d

A decoder still knows the order, because each token sees one key more than the one before it; an encoder becomes a bag
of words. From scratch it trains more slowly and often generalises further.

Haviv, Ram, Press, Izsak, Levy 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466.
"""

from __future__ import annotations

from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.registry import register_scheme


@register_scheme("none", aliases=("nope", "no_pos"), paper="2305.19466")
class NoPE(Scheme):
    """The host's own positions switched off and nothing in their place. Tune after patching a trained model."""
