"""Which models can be measured: those of one stack, causal or masked, with all their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.errors import CheckpointMismatch
from hf_posenc.eval.errors import NotMeasurable
from hf_posenc.eval.lm.log_probs import unwrapped


def is_masked(model: Any) -> bool:
    """Whether a model's own class, or a checkpoint's, is a masked language model."""
    if isinstance(model, Checkpoint):
        classes = model.architectures
    else:
        classes = [cls.__name__ for cls in type(unwrapped(model)).__mro__]
    return any(name.endswith("ForMaskedLM") for name in classes)


def check_one_stack(config: Any) -> None:
    """Refuse the configuration of an encoder–decoder, whose encoder would read the tokens to score.

    Raises:
        NotMeasurable: it is one.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise NotMeasurable(
            f"This {config.model_type} is an encoder–decoder, and the tasks here score what one stack reads. Measure a "
            "decoder or an encoder, or this one by lm-eval's own model type hf with backend=seq2seq."
        )


def check_head(loading: Mapping[str, Any], name: str) -> None:
    """Refuse a checkpoint that lacks weights of the model, mostly its head, which transformers would draw at random.

    Args:
        loading: transformers' report of what it loaded.
        name: of the checkpoint.

    Raises:
        CheckpointMismatch: a weight is missing; one of a pooler, which scores no token, may be.
    """
    missing = sorted(key for key in loading["missing_keys"] if not {"posenc", "pooler"} & set(key.split(".")))
    if missing:
        raise CheckpointMismatch(
            f"The checkpoint {name} lacks {missing[0]!r}, which transformers would initialise at random. Measure a "
            "checkpoint that was saved whole, with a language-model head."
        )
