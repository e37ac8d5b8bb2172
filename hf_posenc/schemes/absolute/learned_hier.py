"""Hierarchical positions: read a learned table of n rows by two digits of base n, which gives n² positions.

    p = a n + b          q_p = α u_a + (1 − α) u_b          u = (E − α E_0) / (1 − α)
                             = E_b + α / (1 − α) (E_a − E_0)

With this choice of u the first n positions (a = 0) are the rows of the table. α ≠ 1/2 distinguishes (a, b) from (b, a);
α → 0 repeats the table. No parameter is added: training changes the model's own table. Zero-shot use works modestly;
fine-tune briefly.

Su 2020, kexue.fm/archives/7947.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import embedding

from hf_posenc.core.context import check_table_rows
from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import Share
from hf_posenc.schemes.registry import register_scheme


def trained_rows(geometry: Geometry) -> int:
    """Rows of the model's table that were trained."""
    return min(geometry.table or geometry.trained_length, geometry.trained_length)


@register_scheme("learned_hier", aliases=("hierarchical", "su2020"), paper="https://kexue.fm/archives/7947")
class LearnedHier(Scheme):
    """The model's own table of n rows extended to n² positions; the first n are unchanged."""

    formula = r"""
    p &= a n + b \\
    q_p &= \alpha \, u_a + (1 - \alpha) \, u_b, \quad u = \frac{E - \alpha E_0}{1 - \alpha} \\
    &= E_b + \frac{\alpha}{1 - \alpha} (E_a - E_0)
    """

    needs_table = True

    def __init__(self, geometry: Geometry, *, alpha: Share = 0.4) -> None:
        super().__init__(geometry)
        if alpha == 0.5:
            raise OptionOutOfRange("alpha must not be 0.5, where position (a, b) equals (b, a). Take 0.4.")
        self.rows, self.ratio = trained_rows(geometry), alpha / (1 - alpha)

    def read_table(self, table: Tensor, positions: Tensor) -> Tensor:
        """Codes of ``positions […]`` from ``table [rows, width]``, with a gradient to it, ``[…, width]``.

        Raises:
            PositionOutOfTable: a position is n² or more.
        """
        check_table_rows(positions, self.longest, self.record.name)
        high, low = positions // self.rows, positions % self.rows
        return embedding(low, table) + self.ratio * (embedding(high, table) - table[0])

    @property
    def keeps_table(self) -> bool:
        """Always: the codes are computed from the model's table."""
        return True

    @property
    def unchanged_below(self) -> int:
        """Number of rows of the table; 0 if the model also has a learned bias, which a scheme replaces."""
        return 0 if self.geometry.biased else self.rows

    @property
    def longest(self) -> int:
        """n², the number of values of two digits of base n."""
        return self.rows**2
