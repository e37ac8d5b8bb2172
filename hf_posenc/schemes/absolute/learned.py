"""Learned positions: one trained vector per position, added to the token embedding.

    x_p ← x_p + E[p]          E: rows × width

GPT-2 and BERT have such a table and keep it; Llama gets a new one, as does any model when ``num_positions`` is given.
A table has no values for positions past its last row, so those are refused. The table is learned; a new one needs
training. ``std`` is the standard deviation of a new table (0.02, as in GPT-2 and BERT); it is refused if the model's
own table is kept.

Gehring, Auli, Grangier, Yarats, Dauphin 2017, arXiv:1705.03122, section 3.1; as in GPT-2 and BERT.
"""

from __future__ import annotations

from torch import Tensor, nn

from hf_posenc.core.context import check_table_rows
from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import Positive, PositiveInt
from hf_posenc.schemes.registry import register_scheme

STD = 0.02


@register_scheme("learned", aliases=("absolute", "ape"), paper="1705.03122")
class Learned(Scheme):
    """A table of ``num_positions`` rows (default: the model's own table, or else the target length), N(0, ``std``²)."""

    formula = r"x_p \leftarrow x_p + E[p], \qquad E : \text{rows} \times \text{width}"

    whole_positions = True

    def __init__(
        self, geometry: Geometry, *, num_positions: PositiveInt | None = None, std: Positive | None = None
    ) -> None:
        super().__init__(geometry)
        self.std = STD if std is None else std
        if num_positions is None and geometry.table is not None:
            if std is not None:
                raise OptionOutOfRange(
                    f"The model's own table of {geometry.table} rows is kept, so std={std} would have no effect. "
                    "Leave std out, or ask for a new table with num_positions=…."
                )
            self.rows, self.table = geometry.table, None
        else:
            self.rows = num_positions or geometry.target_length
            self.table = nn.Embedding(self.rows, geometry.code_width)

    def reset_parameters(self) -> None:
        """Redraw the scheme's own table."""
        if self.table is not None:
            nn.init.normal_(self.table.weight, std=self.std)

    def embed(self, positions: Tensor) -> Tensor | None:
        """Rows of the scheme's own table, ``[batch or 1, query, width]``; None if the model's own is used.

        Raises:
            PositionOutOfTable: a position is past the last row.
        """
        if self.table is None:
            return None
        check_table_rows(positions, self.rows, self.record.name)
        return self.table(positions)

    @property
    def keeps_table(self) -> bool:
        """Whether the model's own table is used."""
        return self.table is None

    @property
    def unchanged_below(self) -> int:
        """Number of rows of the model's table if that is kept."""
        return self.rows if self.keeps_table and not self.geometry.biased else 0  # the model's own bias is removed

    @property
    def longest(self) -> int:
        """Number of rows of the table."""
        return self.rows
