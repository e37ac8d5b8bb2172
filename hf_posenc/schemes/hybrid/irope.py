"""iRoPE: most layers rotate, optionally within a window; every n-th layer has no positions and full attention.

    layer l = 0, 1, …:  global_scheme if (l + 1) mod interval = 0,  local_scheme otherwise

Layers without rotation do not depend on the trained distances, and layers with a window have no long ones. Every fourth
layer is global in SmolLM3 and in Llama 4. Llama 4 also has a temperature (``global_scheme="none+llama4_temp"``), and
cuts local keys into chunks instead of a window. Cohere 2 and RNoPE-SWA have a window.

Meta 2025, Llama 4; Yang et al. 2025, "RoPE to NoPE and Back Again", arXiv:2501.18795; Hugging Face 2025, SmolLM3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import AtLeastTwo, PositiveInt
from hf_posenc.schemes.registry import register_scheme

if TYPE_CHECKING:
    from hf_posenc.schemes.spec import SchemeSpec


@register_scheme("irope", aliases=("hybrid",), paper="2501.18795")
class IRoPE(Scheme):
    """A layout: rotation (with ``window``, sliding-window attention) in most layers, no positions in every n-th.

    ``interval`` is 4 by default, or the number of layers if there are fewer. Both schemes may be any composition, by
    name; for their options, or another pattern, pass ``layers=`` to ``patch_model``. Train after patching.
    """

    formula = r"""
    \text{layer } l = \begin{cases}
    \mathtt{global\_scheme} & (l + 1) \bmod \mathtt{interval} = 0 \\
    \mathtt{local\_scheme} & \text{otherwise}
    \end{cases} \qquad l = 0, 1, \dots
    """

    needs_causal: ClassVar[bool] = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        interval: AtLeastTwo | None = None,
        global_scheme: str = "none",
        local_scheme: str = "rope",
        window: PositiveInt | None = None,
    ) -> None:
        super().__init__(geometry)

    @classmethod
    def layers_of(
        cls,
        count: int,
        *,
        interval: int | None = None,
        global_scheme: str = "none",
        local_scheme: str = "rope",
        window: int | None = None,
    ) -> dict[int, SchemeSpec]:
        """The scheme of each of ``count`` layers."""
        local: SchemeSpec = local_scheme if window is None else [local_scheme, ("window", {"size": window})]
        period = min(4, max(count, 2)) if interval is None else interval
        return {layer: local if (layer + 1) % period else global_scheme for layer in range(count)}
