"""Several cards for one row: a run of TRL under context parallelism, with weights and optimiser sharded (FSDP2).

Each card holds a part of every row. Only schemes that rotate or scale a token by its own position work there. TRL does
not pack rows there: they are packed here, and the file of documents holds their token ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from hf_posenc.errors import TrainingImpossible
from hf_posenc.forward.current_forward import schemes_of_base
from hf_posenc.forward.engine_backend import supports_context_parallel
from hf_posenc.patching.state import base_model_of, is_patched
from hf_posenc.patching.weights import check_vocabulary
from hf_posenc.texts import TextSource
from hf_posenc.training.config import Training
from hf_posenc.training.corpus import tokenise
from hf_posenc.training.dataset import PackedRows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def unit_of(cards: int) -> int:
    """Return the number that the length of a row must be a multiple of: torch gives each card two pieces of a row."""
    return 1 if cards == 1 else 2 * cards


def check_cards(model: PreTrainedModel, training: Training, cards: int, *, four_bit: bool) -> None:
    """Refuse cards that share rows if the scheme or a setting needs whole rows."""
    schemes = schemes_of_base(base_model_of(model)[0]) if is_patched(model) else []
    refused = next((scheme.shown_name for scheme in schemes if not supports_context_parallel(scheme)), None)
    if refused is not None:
        raise TrainingImpossible(
            f"cards={cards} would share each row, and scheme {refused!r} needs whole rows. Choose a scheme that only "
            'rotates, such as "yarn", or use hf-posenc finetune under accelerate launch, which gives cards whole rows.'
        )
    if four_bit or training.packing == "separate" or training.length % unit_of(cards):
        raise TrainingImpossible(
            f"cards={cards} takes joined rows of a multiple of {unit_of(cards)} tokens and weights that are not "
            f"quantised, got length={training.length}, packing={training.packing} and four_bit={four_bit}. "
            "Change these, or leave cards out."
        )


def accelerate_file(cards: int) -> dict[str, Any]:
    """Return the configuration of ``accelerate launch``."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": True,
            "fsdp_state_dict_type": "FULL_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_activation_checkpointing": False,
            "fsdp_offload_params": False,
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": 1,
            "parallelism_config_dp_shard_size": 1,
            "parallelism_config_tp_size": 1,
            "parallelism_config_cp_size": cards,
        },
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": cards,
        "mixed_precision": "bf16",
        "rdzv_backend": "static",
        "same_network": True,
    }


def token_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Any, training: Training
) -> Iterator[dict[str, list[int]]]:
    """Yield the rows of the run as token ids, as many as its steps read, or all if the text has fewer.

    Raises:
        LengthContradiction: the text is shorter than one row.
    """
    needed = None if training.steps is None else training.steps * training.batch * training.accumulate
    enough = inf if needed is None else needed * training.length
    corpus = tokenise(tokenizer, TextSource.of_texts("texts", texts).documents(), enough=enough)
    check_vocabulary(base_model_of(model)[0], corpus.highest)
    return ({"input_ids": ids.tolist()} for ids in islice(PackedRows(corpus, training.length).rows, needed))
