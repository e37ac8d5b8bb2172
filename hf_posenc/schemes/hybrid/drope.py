"""DroPE: remove the rotation of a trained model and recalibrate it briefly at the trained length, to extend it.

    score[i, j] = c q_i · k_j / √d          in all layers but ``keep_layers``, c = softmax_scale

    with ``qk_norm``: q_i ← g ⊙ q_i / rms(q_i), over the channels of all heads; likewise k

Rotation helps a model to learn, but limits it to the lengths of its training; a decoder without it still infers order
from its mask. Without recalibration the model is broken. The authors report that 0.5 to 2 percent of its training
restores it, without long sequences. The gains g of the norms are learned. Afterwards, softmax_scale is tuned for long
sequences; here it multiplies 1 / √d, and in the released code it replaces it.

Gelberg, Eguchi, Akiba, Cetin 2025, "Extending the Context of Pretrained LLMs by Dropping Their Positional Embeddings",
arXiv:2512.12167; the released code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor, nn

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import NotNegativeInt, Positive
from hf_posenc.schemes.registry import register_scheme

if TYPE_CHECKING:
    from hf_posenc.schemes.spec import SchemeSpec

Normed = Literal["off", "q", "k", "qk"]
EPS = 1e-6


@register_scheme("drope", paper="2512.12167")
class DroPE(Scheme):
    """No positions but in ``keep_layers``; optional norms of queries and keys. Recalibrate after patching."""

    formula = r"""
    \mathrm{score}_{ij} &= c \, \frac{q_i \cdot k_j}{\sqrt d} \quad
      \text{in all layers but } \mathtt{keep\_layers}, \; c = \mathtt{softmax\_scale} \\
    q_i &\leftarrow g \odot \frac{q_i}{\mathrm{rms}(q_i)} \quad
      \text{with } \mathtt{qk\_norm}, \text{ over the channels of all heads; likewise } k
    """

    needs_causal: ClassVar[bool] = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        keep_layers: list[NotNegativeInt] | None = None,
        qk_norm: Normed = "off",
        softmax_scale: Positive = 1.0,
    ) -> None:
        super().__init__(geometry)
        if keep_layers and geometry.rotary is None:
            raise OptionOutOfRange(
                f"keep_layers is {keep_layers}, but this model has its positions in a table before all layers, not in "
                "each layer. Leave keep_layers out."
            )
        self.softmax_scale = softmax_scale
        self.shared = qk_norm == "off"
        unused = {"prepare": qk_norm == "off", "logit_scale": softmax_scale == 1}
        self.idle = frozenset(hook for hook, is_unused in unused.items() if is_unused)
        self.query_norm = nn.RMSNorm(geometry.heads * geometry.head_dim, EPS) if "q" in qk_norm else None
        self.key_norm = nn.RMSNorm(geometry.kv_heads * geometry.head_dim, EPS) if "k" in qk_norm else None

    @classmethod
    def layers_of(
        cls,
        count: int,
        *,
        keep_layers: list[int] | None = None,
        qk_norm: Normed = "off",
        softmax_scale: float = 1.0,
    ) -> dict[int, SchemeSpec]:
        """The scheme of each of ``count`` layers.

        Raises:
            OptionOutOfRange: a kept layer does not exist.
        """
        kept = set(keep_layers or ())
        if not kept <= set(range(count)):
            raise OptionOutOfRange(
                f"keep_layers must be among 0 … {count - 1}, got {sorted(kept)}. Name layers by number."
            )
        dropped = ("drope", {"keep_layers": keep_layers, "qk_norm": qk_norm, "softmax_scale": softmax_scale})
        return {layer: "rope" if layer in kept else dropped for layer in range(count)}

    def reset_parameters(self) -> None:
        """Reset the gains of the norms to 1."""
        for norm in (self.query_norm, self.key_norm):
            if norm is not None:
                norm.reset_parameters()

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return over_all_heads(self.query_norm, query), over_all_heads(self.key_norm, key)

    def logit_scale(self) -> float:
        return self.softmax_scale


def over_all_heads(norm: nn.RMSNorm | None, x: Tensor) -> Tensor:
    """``x [batch, heads, position, head_dim]`` normalised per position over all heads, as in the released code."""
    if norm is None:
        return x
    flat = x.transpose(1, 2).flatten(2).float()
    normed = nn.functional.rms_norm(flat, flat.shape[-1:], norm.weight.float(), EPS)
    return normed.unflatten(2, (x.shape[1], -1)).transpose(1, 2).to(x.dtype)
