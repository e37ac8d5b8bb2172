"""What the general adapter observes of a family of models of the installed transformers, or of a checkpoint.

A family is built from its default configuration, as a stand-in without weights of its own. One that can be observed
is exact by two measurements (`hf_posenc.patches.general.blindness`): with its positions off nothing tells it the order
of its tokens, and with its measured rotation put back its outputs return.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import transformers
from transformers import CONFIG_MAPPING, logging
from transformers.models.auto import modeling_auto

from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.core.geometry import Geometry, LayerKind
from hf_posenc.core.record import SchemeRecord
from hf_posenc.errors import PosEncError, UnsupportedModel, nearest, shown
from hf_posenc.patches.general.stand_in import without_weights
from hf_posenc.patching.state import base_model_of, stacks_of
from hf_posenc.schemes.registry import list_schemes

Kind = Literal["causal", "masked", "seq2seq"]
Verdict = Literal["exact", "attention layers", "refused", "not built"]

CLASSES: dict[Kind, Any] = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
}

OTHERS = (modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, modeling_auto.MODEL_MAPPING_NAMES)
"""Classes of types without a language-model head of their own, such as those that read images as well."""


@dataclass(frozen=True)
class Family:
    """What is known of one family of models.

    Attributes:
        model_type: as in its configuration.
        kind: of the class that was looked at: a decoder (``causal``), an encoder with a masked-language-model head, or
            an encoder–decoder (``seq2seq``).
        verdict: ``exact``; ``attention layers`` where other layers carry order too; ``refused``; or ``not built`` where
            transformers makes no model of its default configuration.
        detail: its rotations and tables, of both stacks where they differ; the reason, where it is refused.
        schemes: how many are defined on it alone, of an encoder–decoder on both stacks.
    """

    model_type: str
    kind: Kind
    verdict: Verdict
    detail: str
    schemes: int = 0


def family(model_type: str, kind: Kind) -> Family:
    """One family, from the default configuration of its class."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        model = default_model(model_type, kind)
    except Exception as error:  # whatever a constructor says of a configuration that nobody filled in
        return Family(model_type, kind, "not built", _first_sentence(error))
    finally:
        logging.set_verbosity(level)
    return look_at(model, model_type, kind)


def default_model(model_type: str, kind: Kind) -> Any:
    """A model of the default configuration of a family, without weights of its own."""
    named = CLASSES[kind].get(model_type) or next((names[model_type] for names in OTHERS if model_type in names), None)
    if named is None:
        raise UnsupportedModel(f"transformers has no model of text of the type {model_type!r}. Choose another.")
    cls = getattr(transformers, named if isinstance(named, str) else named[0])
    config = CONFIG_MAPPING[model_type]()
    if kind == "causal" and hasattr(config, "is_decoder"):
        config.is_decoder = True
    with without_weights():
        return cls(config)


def one(name: str) -> list[Family]:
    """A family by its ``model_type`` in transformers, of every kind that it has; or the family of a checkpoint.

    Raises:
        PosEncError: there is no checkpoint of that name, or its configuration cannot be read.
    """
    kinds: list[Kind] = [kind for kind, classes in CLASSES.items() if name in classes]
    if kinds:
        return [family(name, kind) for kind in kinds]
    if name in CONFIG_MAPPING and any(name in names for names in OTHERS):
        return [family(name, "causal")]
    checkpoint = Checkpoint.open(name)
    config, cls = checkpoint.hf_config(), checkpoint.model_class()
    with without_weights():
        model = cls(config)
    of_class: list[Kind] = [kind for kind, classes in CLASSES.items() if cls.__name__ in classes.values()]
    kind: Kind = of_class[0] if of_class else "causal"
    return [look_at(model, config.model_type, kind)]


def look_at(model: Any, model_type: str, kind: Kind) -> Family:
    """What is known of the family of a model."""
    try:
        seen = geometries(model)
    except PosEncError as error:
        return Family(model_type, kind, "refused", _first_sentence(error))
    except Exception as error:  # whatever a forward pass of a model that nobody filled in says
        return Family(model_type, kind, "not built", f"{type(error).__name__}: {_first_sentence(error)}")
    partly = any(geometry.mixes_otherwise for geometry in seen.values())
    words = {name: described(geometry) for name, geometry in seen.items()}
    alike = len(set(words.values())) == 1
    detail = next(iter(words.values())) if alike else " | ".join(f"{name}: {text}" for name, text in words.items())
    return Family(model_type, kind, "attention layers" if partly else "exact", detail, len(defined_on(seen)))


def schemes_of(model_type: str) -> list[SchemeRecord]:
    """The schemes that are defined on a family: where it has several kinds, on its encoders.

    Raises:
        UnsupportedModel: transformers does not know it, or no model of text can be built of its default configuration.
    """
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModel(
            f"transformers knows no model type {shown(model_type)}.{nearest(model_type, CONFIG_MAPPING)} "
            "Choose another, such as 'llama'."
        )
    kinds: tuple[Kind, ...] = "masked", "causal", "seq2seq"
    kind: Kind = next((one for one in kinds if model_type in CLASSES[one]), "causal")
    try:
        return defined_on(geometries(default_model(model_type, kind)))
    except PosEncError:
        raise
    except Exception as error:  # whatever a class says of its own default configuration
        raise UnsupportedModel(
            f"The default configuration of {model_type!r} builds no model of text ({type(error).__name__}: {error}). "
            "Look at a checkpoint: hf-posenc list --models --model NAME."
        ) from error


def defined_on(stacks: Mapping[str, Geometry]) -> list[SchemeRecord]:
    """The schemes that are defined on all stacks of a model."""
    return [record for record in list_schemes() if not any(map(record.unmet_needs, stacks.values()))]


def geometries(model: Any) -> dict[str, Geometry]:
    """The geometry of a model, or of each stack of an encoder–decoder.

    Raises:
        PosEncError: it cannot be patched.
    """
    found = {}
    for name, part in (stacks_of(model) or {"": model}).items():
        base, adapter = base_model_of(part)
        length = adapter.trained_length(base.config)
        found[name] = adapter.geometry(base.config, trained_length=length, target_length=length)
    return found


def described(geometry: Geometry) -> str:
    """Rotations, windows, tables and biases of a model, in words."""
    alike = LayerKind(geometry.heads, geometry.kv_heads, geometry.head_dim, geometry.rotary)
    kinds = geometry.kinds or (alike,) * geometry.layers
    layers = Counter(str(kind) for kind in kinds if kind.rotary or not kind.sees_all)
    parts = [f"{count} × {text}" for text, count in layers.items()]
    parts += [] if geometry.table is None else [f"table of {geometry.table:,} positions"]
    parts += [] if geometry.slopes is None else [f"{geometry.layers} × linear bias (ALiBi)"]
    parts += ["a learned bias of the distance"] if geometry.biased else []
    return "; ".join(parts) or "no positions"


def _first_sentence(error: Exception) -> str:
    return " ".join(str(error).split()).partition(". ")[0][:200]
