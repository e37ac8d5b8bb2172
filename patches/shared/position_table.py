"""Replacement of a model's learned position table: the scheme decides what is added to the embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import TrainingImpossible, UnsupportedModel
from hf_posenc.forward.current_forward import ATTENTION, OWNER, counts_columns, current_forward
from hf_posenc.forward.placement import scheme_on
from hf_posenc.schemes.base import Scheme, implements

FIRST_ROW = "posenc_first_row"


class SchemePositionTable(nn.Embedding):
    """Patched class of the model's position table, which keeps its weights and their names.

    A scheme with a code of its own adds the code. A scheme that keeps the table reads it, with an error past its end.
    Any other scheme adds nothing. If the table starts with rows for padding, the attribute `FIRST_ROW` holds the row of
    position 0.
    """

    prefix = "Scheme"

    @property
    def scheme(self) -> Scheme:
        """The scheme of the model: the shared scheme, or the scheme of the first layer."""
        return self.__dict__[ATTENTION].scheme

    def forward(self, rows: Tensor) -> Tensor:
        """Position codes ``[…, width]`` for table rows ``[batch or 1, token]`` or ``[token]``, or a scalar zero.

        Raises:
            PositionOutOfTable: the table is read past its end.
        """
        first = self.__dict__.get(FIRST_ROW, 0)
        positions = (rows - first).clamp(min=0) if first else rows  # rows of padding come before the first
        positions = positions if positions.ndim > 1 else positions[None]
        scheme = scheme_on(self.scheme, positions.device)
        code_positions, positions = self.positions_of_call(positions)
        code = scheme.embed(code_positions)
        if code is not None:
            shape = rows.shape if code_positions.numel() == rows.numel() else code_positions.shape
            return code.to(self.weight.dtype).reshape(*shape, -1)
        if scheme.replaces_host and not scheme.keeps_table:
            return self.weight.new_zeros(())  # a scalar promotes no dtype and broadcasts to any shape
        shape = rows.shape if positions.numel() == rows.numel() else positions.shape
        return scheme.read_table(self.weight[first:], positions).reshape(*shape, -1)

    def positions_of_call(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Positions ``[batch or 1, token]`` for a code and for the table, given the columns that the model numbers.

        A model that numbers columns itself ignores the positions of the call; here they replace the columns. With
        padding, a code counts real tokens, and the table is read by columns, as in the unpatched model.
        """
        base = self.__dict__[ATTENTION].__dict__[OWNER]
        forward = current_forward(base) if counts_columns(base) and not is_traced() else None
        if forward is None or forward.positions is None:
            return columns, columns
        if forward.padding is None:
            positions = forward.positions.to(columns.device)
            return positions, positions
        counted = (forward.padding.cumsum(-1) - 1).clamp(min=0)
        return counted[:, -columns.shape[1] :].to(columns.device), columns


def check_own_table(name: str, table: nn.Module, base: nn.Module) -> None:
    """Refuse a position table inside a wrapper such as PEFT's, which adds its own rows, and cannot change class."""
    if not isinstance(table, nn.Embedding):
        raise UnsupportedModel(
            f"{name}, the position table of this {type(base).__name__}, is wrapped in a {type(table).__name__}, as "
            "PEFT does. Patch the model first, and add the adapter afterwards."
        )


def reads_rows(scheme: Scheme) -> bool:
    """Whether a scheme reads one unchanged row of the model's table for each position."""
    keeps = scheme.keeps_table or not scheme.replaces_host
    return keeps and not implements(scheme, "read_table") and scheme.embed(torch.zeros(1, 1, dtype=torch.long)) is None


def padded_to_width(code: Tensor, width: int) -> Tensor:
    """A position code padded with zeros to ``width``, for models that project embeddings to wider layers."""
    return code if code.ndim == 0 or code.shape[-1] == width else nn.functional.pad(code, (0, width - code.shape[-1]))


INNER = "base_layer"  # PEFT's name for the layer inside its wrapper


def check_adapted_tables(model: nn.Module) -> None:
    """Refuse a PEFT adapter on the position table if the scheme does not read the table row by row."""
    for name, module in model.named_modules():
        table = module._modules.get(INNER)
        if isinstance(table, SchemePositionTable) and not reads_rows(table.scheme):
            raise TrainingImpossible(
                f"PEFT adapts the rows of the position table {name}, and scheme {table.scheme.shown_name!r} does not "
                "read it row by row. Leave it out of target_modules; a table that the scheme keeps trains with "
                "modules_to_save."
            )
