"""NoPE: no positional encoding at all.

    score[i, j] = q_i · k_j / √d

A decoder still infers the order, because each token attends to one key more than the one before it; an encoder becomes
a bag of words. Trained from scratch it learns more slowly and often generalises to longer sequences.

Haviv, Ram, Press, Izsak, Levy 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466.
"""

from __future__ import annotations

from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.registry import register_scheme


@register_scheme("none", aliases=("nope", "no_pos"), paper="2305.19466")
class NoPE(Scheme):
    """The model's own positions switched off, without replacement. Tune after patching a trained model."""

    formula = r"\mathrm{score}_{ij} = \frac{q_i \cdot k_j}{\sqrt d}"
