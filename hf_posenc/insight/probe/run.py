"""Probe a trained model, unpatched and with a scheme."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.checkpoints.load import from_pretrained
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.tokenizer import tokenizer_of
from hf_posenc.core.memory import check_text_memory
from hf_posenc.core.progress import StepCallback
from hf_posenc.core.torch_state import evaluation_mode
from hf_posenc.errors import UnknownOption
from hf_posenc.eval.texts.measured_text import TextToMeasure, measured_text
from hf_posenc.insight.probe.plan import check_arguments, default_length, lengths_of, plan_of
from hf_posenc.insight.probe.variant import Variant, measure
from hf_posenc.patching.patch import patch_model, scheme_set_aside, unpatch_model
from hf_posenc.patching.state import describe, is_patched
from hf_posenc.schemes.entry import UNPATCHED
from hf_posenc.schemes.spec import SchemeSpec


@dataclass(frozen=True)
class Probe:
    """Result of `probe`.

    Attributes:
        variants: the model as given; then, where a scheme is given, the model patched with it.
        trained_length: pre-training context length in tokens.
        samples: number of texts.
        sinks: tokens at the start that count as attention sink.
    """

    variants: tuple[Variant, ...]
    trained_length: int
    samples: int
    sinks: int

    @property
    def moved(self) -> Tensor | None:
        """Share of each head's attention that the scheme moves to other distances, 0 … 1, ``[layers, heads]``.

        The total variation distance between the two profiles. None where there is one variant only, or the two were
        measured at different lengths.
        """
        if len(self.variants) < 2 or self.variants[0].length != self.variants[1].length:
            return None
        pairs = zip(self.variants[0].profiles, self.variants[1].profiles, strict=True)
        return torch.stack([(after.mass - before.mass).abs().sum(1) / 2 for before, after in pairs])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        moved = self.moved
        return {
            "trained_length": self.trained_length, "samples": self.samples, "sinks": self.sinks,
            "variants": [variant.to_dict() for variant in self.variants],
            "moved": None if moved is None else moved.tolist(),
        }  # fmt: skip


def probe(
    model: nn.Module | str | os.PathLike[str],
    tokenizer: Any = None,
    *,
    scheme: SchemeSpec | None = None,
    factor: float | None = None,
    target_length: int | None = None,
    length: int | None = None,
    text: TextToMeasure = None,
    text_field: str = "text",
    document_separator: str | None = None,
    samples: int = 32,
    rows: int = 256,
    scored: int = 32,
    sinks: int = 1,
    seed: int = 0,
    progress: StepCallback = lambda doing: None,
    **options: Any,
) -> Probe:
    """Measure where a model's heads attend, which of them use position, and how much context the model uses.

    Args:
        model: patched or not, restored to its state when this returns; or a name as `from_pretrained` takes it.
        tokenizer: fast tokenizer of the model; by default that of a model given by name.
        scheme, factor, target_length, options: as in `patch_model`. With a scheme, the model is measured as it is and
            with this scheme in place of its own.
        length: tokens per text; by default the target length of the scheme, else the size of the position table or,
            without a table, twice the trained length.
        text, text_field, document_separator: as in `hf_posenc.eval.evaluate`.
        samples: number of texts, spread evenly over the documents.
        rows: attention rows measured per text, in four of the texts; 64 rows are in memory at a time.
        scored: tokens at the end of each text whose loss is measured.
        sinks: tokens at the start that count as attention sink.
        seed: random seed of the position shuffle.
        progress: called with a description of the current step.

    Raises:
        TextTooShort: the documents have not enough text.
        LengthTooShort: ``length`` has no room for the scored tokens.
        WeightsNotFinite: a weight is NaN or infinite.
        TaskOptionOutOfRange: a count is not a positive integer, or ``sinks`` is not below ``length``.
        UnknownOption: an option of a scheme is given, and no scheme.
        PosEncError: the scheme is refused, or a name leads to no model.
    """
    given = {"factor": factor, "target_length": target_length, **options}
    if scheme is None and (unused := [name for name, value in given.items() if value is not None]):
        raise UnknownOption(
            f"{unused[0]!r} belongs to a scheme, and none is asked for. Pass scheme=, or length= for longer texts."
        )
    if isinstance(model, (str, os.PathLike)):
        tokenizer = tokenizer_of(ModelName.of(model)) if tokenizer is None else tokenizer
        model = from_pretrained(model)
    check_arguments(model, tokenizer, length=length, samples=samples, rows=rows, scored=scored, sinks=sinks, seed=seed)
    own_text = measured_text(text, field=text_field, separator=document_separator)
    with evaluation_mode(model):
        variants = []
        is_patched_already = is_patched(model)
        trained, table_size = lengths_of(model, scheme, options)
        probed = length or default_length(model, factor, target_length, trained, table_size)
        check_text_memory(model, probed)
        settings = {"samples": samples, "rows": rows, "scored": scored, "sinks": sinks, "seed": seed}
        first = probed if is_patched_already or table_size is None else min(probed, table_size)
        label = describe(model).scheme if is_patched_already else UNPATCHED
        plan = plan_of(model, tokenizer, own_text, first, trained, **settings)
        variants.append(measure(model, plan, label, progress))
        if scheme is not None:
            with scheme_set_aside(model):
                patch_model(model, scheme, factor=factor, target_length=target_length, **options)
                try:
                    plan = plan_of(model, tokenizer, own_text, probed, trained, **settings)
                    variants.append(measure(model, plan, describe(model).scheme, progress))
                finally:
                    unpatch_model(model)
    return Probe(tuple(variants), trained, samples, sinks)
