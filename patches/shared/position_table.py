"""A host's learned position table, when a scheme decides what is added to the embeddings."""

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
    """Stands where the table stood and keeps its weights under their name.

    A scheme that keeps the table reads it, with a clear error past its end; one that brings a code of its own adds
    that; any other adds nothing. Where a model keeps rows for padding before it, the row of position 0 is set on the
    module (`FIRST_ROW`).
    """

    prefix = "Scheme"

    @property
    def scheme(self) -> Scheme:
        """The scheme of the model this table belongs to: the shared one, or the first layer's."""
        return self.__dict__[ATTENTION].scheme

    def forward(self, rows: Tensor) -> Tensor:
        """``rows [batch or 1, token]``, or ``[token]``, of the table to ``[…, width]``, or to a scalar zero.

        Raises:
            PositionOutOfTable: the table is read past its end.
        """
        first = self.__dict__.get(FIRST_ROW, 0)
        positions = (rows - first).clamp(min=0) if first else rows  # padding has a row before the first
        positions = positions if positions.ndim > 1 else positions[None]
        scheme = scheme_on(self.scheme, positions.device)
        of_real_tokens, positions = self.of_call(positions)
        code = scheme.embed(of_real_tokens)
        if code is not None:
            shape = rows.shape if of_real_tokens.numel() == rows.numel() else of_real_tokens.shape
            return code.to(self.weight.dtype).reshape(*shape, -1)
        if scheme.replaces_host and not scheme.keeps_table:
            return self.weight.new_zeros(())  # without dimensions it promotes no dtype and broadcasts to any shape
        shape = rows.shape if positions.numel() == rows.numel() else positions.shape
        return scheme.read_table(self.weight[first:], positions).reshape(*shape, -1)

    def of_call(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Positions ``[batch or 1, token]`` for a code and for the table, where a model itself numbers ``columns``.

        Those of the call, which such a model does not hand on; a code counts real tokens, and the table is read by
        columns, as unpatched, where some hold padding.
        """
        base = self.__dict__[ATTENTION].__dict__[OWNER]
        forward = current_forward(base) if counts_columns(base) and not is_traced() else None
        if forward is None or forward.positions is None:
            return columns, columns
        if forward.padding is None:
            of_call = forward.positions.to(columns.device)
            return of_call, of_call
        counted = (forward.padding.cumsum(-1) - 1).clamp(min=0)
        return counted[:, -columns.shape[1] :].to(columns.device), columns


def check_own_table(name: str, table: nn.Module, base: nn.Module) -> None:
    """Refuse a position table inside a wrapper, as PEFT's is: it adds rows of its own, and keeps its class."""
    if not isinstance(table, nn.Embedding):
        raise UnsupportedModel(
            f"{name}, the position table of this {type(base).__name__}, is wrapped in a {type(table).__name__}, as "
            "PEFT does. Patch the model first, and add the adapter afterwards."
        )


def reads_rows(scheme: Scheme) -> bool:
    """Whether a scheme takes the row of a position from the model's table, and changes nothing of it."""
    kept = scheme.keeps_table or not scheme.replaces_host
    return kept and not implements(scheme, "read_table") and scheme.embed(torch.zeros(1, 1, dtype=torch.long)) is None


def as_wide(code: Tensor, width: int) -> Tensor:
    """A position code of embeddings, with as many channels as layers have: what a model projects between the two."""
    return code if code.ndim == 0 or code.shape[-1] == width else nn.functional.pad(code, (0, width - code.shape[-1]))


INNER = "base_layer"  # what PEFT calls the layer that it has wrapped


def check_adapted_tables(model: nn.Module) -> None:
    """Refuse what PEFT has added to a patched model."""
    for name, module in model.named_modules():
        table = module._modules.get(INNER)
        if isinstance(table, SchemePositionTable) and not reads_rows(table.scheme):
            raise TrainingImpossible(
                f"PEFT adapts the rows of the position table {name}, and scheme {table.scheme.shown_name!r} does not "
                "read it row by row. Leave it out of target_modules; a table that the scheme keeps trains with "
                "modules_to_save."
            )
