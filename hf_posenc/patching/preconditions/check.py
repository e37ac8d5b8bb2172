"""All preconditions of a patch, in the order they are checked; nothing has been touched where one is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from hf_posenc.errors import AlreadyPatched, CheckpointMismatch
from hf_posenc.patching.preconditions.host import (
    check_existing_scaling,
    check_foreign_forward,
    check_layer_count,
    check_remembered,
)
from hf_posenc.patching.preconditions.host_config import (
    check_complete,
    check_lengths_and_rotation,
    check_one_configuration,
)
from hf_posenc.patching.preconditions.tables import check_tables
from hf_posenc.patching.preconditions.weights import check_finite, check_floating
from hf_posenc.patching.preconditions.wrappers import check_reducer, check_single_model, check_unsharded
from hf_posenc.patching.state import STASH, adapted_modules, describe
from hf_posenc.patching.stored.config_guard import SCHEME_KEY
from hf_posenc.patching.swap import out_of_use

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry
    from hf_posenc.patches.adapter import Adapter
    from hf_posenc.schemes.base import Scheme


def check_model(model: nn.Module, base: nn.Module) -> None:
    """Refuse a model that cannot be patched with any scheme.

    Args:
        model: as the caller holds it.
        base: the base model inside it.

    Raises:
        AlreadyPatched: it carries a scheme.
        CheckpointMismatch: it was loaded from a checkpoint with a scheme, but without it.
        UnsupportedModel: it holds several models, its weights are sharded, or they are integers.
        HostConfigInvalid: its configuration has positions out of range.
        WeightsNotFinite: a weight is no finite number.
    """
    if STASH in base.__dict__:
        raise AlreadyPatched(
            f"This model carries scheme {describe(base).scheme!r} already. Call unpatch_model(model) first, "
            'or compose them: scheme="one+other".'
        )
    config: Any = base.config
    if getattr(config, SCHEME_KEY, None) is not None:
        raise CheckpointMismatch(
            "This checkpoint carries a scheme, but was loaded without it, so that its learned positions are lost. "
            "Load it with hf_posenc.from_pretrained, or call hf_posenc.enable_auto() first."
        )
    check_single_model(model, base, {cls.base_class for _, cls in adapted_modules(model)})
    check_unsharded(model)
    check_lengths_and_rotation(vars(config), f"this {type(base).__name__}")
    check_complete(vars(config), f"this {type(base).__name__}")
    check_one_configuration(model, base)
    check_floating(model)
    check_finite(model)


def check_schemes(
    model: nn.Module,
    base: nn.Module,
    adapter: Adapter,
    geometry: Geometry,
    schemes: list[Scheme],
    *,
    trained_length_given: bool,
) -> None:
    """Refuse a model that these schemes cannot be put on as a whole.

    Args:
        model, base, adapter, geometry: of the model.
        schemes: one a layer.
        trained_length_given: whether the caller says what length the weights were trained for.

    Raises:
        AlreadyScaled: the configuration scales RoPE already, and the schemes would overwrite that.
        AdapterInvalid: the adapter names something that is no module or parameter of the model.
        UnsupportedModel: not every layer can be patched, `DistributedDataParallel` has counted the parameters, or PEFT
            has wrapped a position table.
        HostConfigInvalid: modules of the model remember another configuration.
        ForeignPatch: another library replaced the ``forward`` of a module.
    """
    check_existing_scaling(adapter, base.config, schemes, trained_length_given=trained_length_given)
    check_layer_count(adapter, base, geometry)
    check_remembered(adapter, base)
    check_foreign_forward(adapter, base, schemes[0])
    check_tables(adapter, base, schemes[0], geometry)
    check_reducer(model, (p for s in schemes for p in s.parameters()), out_of_use(adapter, base, schemes))
