"""Position-table checks: refuse a table of another length than the configuration's, and a PEFT adapter around one.

LoRA of an embedding adds its own rows to what the table returns, by the positions of the call. Where a scheme
interpolates the table, or has taken its place, these rows are positions that the scheme knows nothing of: they end with
the table, and merging moves them elsewhere or drops them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from hf_posenc.errors import HostConfigInvalid, TrainingImpossible
from hf_posenc.patches.shared.position_table import FIRST_ROW, SchemePositionTable, check_own_table, reads_rows

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry
    from hf_posenc.patches.adapter import Adapter
    from hf_posenc.schemes.base import Scheme

INNER = "base_layer"  # what PEFT calls the layer that it has wrapped


def check_tables(adapter: Adapter, base: Any, scheme: Scheme, geometry: Geometry) -> None:
    """Refuse to patch a model whose position table PEFT has wrapped; raises as `check_own_table` does.

    Raises:
        HostConfigInvalid: the table has another number of rows than the configuration says.
    """
    first = {id(module): kept.get(FIRST_ROW, 0) for module, kept in adapter.attributes(base)}
    tables = [module for module, cls in adapter.swaps(base, scheme) if issubclass(cls, SchemePositionTable)]
    for name, module in base.named_modules():
        if module in tables:
            check_own_table(name, module, base)
    rows = min((table.num_embeddings - first.get(id(table), 0) for table in tables), default=geometry.table)
    if rows != geometry.table:
        said = base.config.max_position_embeddings
        raise HostConfigInvalid(
            f"max_position_embeddings of this {type(base).__name__} is {said}, which gives {geometry.table} positions, "
            f"and its position table has rows for {rows}. Set it to {said + rows - geometry.table}."
        )


def check_adapted_tables(model: nn.Module) -> None:
    """Refuse what PEFT has added to a patched model.

    Raises:
        TrainingImpossible: it adapts a position table that the scheme does not read row by row.
    """
    for name, module in model.named_modules():
        table = module._modules.get(INNER)
        if isinstance(table, SchemePositionTable) and not reads_rows(table.scheme):
            raise TrainingImpossible(
                f"PEFT adapts the rows of the position table {name}, and scheme {table.scheme.extra_repr()!r} does not "
                "read it row by row. Leave it out of target_modules; a table that the scheme keeps trains with "
                "modules_to_save."
            )
