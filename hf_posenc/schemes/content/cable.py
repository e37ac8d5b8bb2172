"""CABLE: a context-aware bias, the cumulative sum of a learned decay of every token.

    score[i, j] = q_i · k_j / √d + c_i − c_j          c_t = Σ_{s ≤ t} −softplus(w_h · x_s + b_h)

−softplus(z) = ln σ(−z), so this is FoX (`hf_posenc.schemes.content.fox`) with the negated projection: one function
published twice, independently. The published attention leaves out 1 / √d; here it stays.

Learned: w and b, one per head; training is needed.

Veisi, Amirzadeh, Mansourian 2025, arXiv:2503.08067, section 3.
"""

from __future__ import annotations

from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.content.fox import Fox, Parametrisation
from hf_posenc.schemes.registry import register_scheme


@register_scheme("cable", paper="2503.08067")
class Cable(Fox):
    """A learned decay per head and token, summed to a bias: FoX with a negated gate. Defined at every length.

    It has the options of ``fox``: ``bias_init`` is the initial logit of the gate, e^(−step) = σ(bias_init).
    """

    formula = r"""
    \mathrm{score}_{ij} &= \frac{q_i \cdot k_j}{\sqrt d} + c_i - c_j \\
    c_t &= \sum_{s \le t} -\mathrm{softplus}(w_h \cdot x_s + b_h)
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        param: Parametrisation = "neg_softplus",
        bias_init: float = 0.0,
        with_rope: bool = False,
        bidirectional: bool | None = None,
    ) -> None:
        super().__init__(geometry, param=param, bias_init=bias_init, with_rope=with_rope, bidirectional=bidirectional)
