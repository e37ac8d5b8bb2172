"""Probe a trained model, unpatched and with a scheme."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
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
from hf_posenc.errors import UnknownOption, WrongKind, shown
from hf_posenc.eval.errors import LengthTooShort, TextTooShort
from hf_posenc.eval.lm.prefixes import frame_of
from hf_posenc.eval.tasks.sweep import Count, Seed, checked
from hf_posenc.eval.texts.measured_text import MeasuredText, TextToMeasure, measured_text
from hf_posenc.eval.texts.windows import tokenized_documents
from hf_posenc.insight.probe.variant import NEAR, Variant, measure
from hf_posenc.patching.layer_schemes import trained_length_of_patch
from hf_posenc.patching.patch import patch_model, scheme_set_aside
from hf_posenc.patching.state import base_model_of, describe, is_patched
from hf_posenc.patching.weights import check_loaded, check_vocabulary
from hf_posenc.schemes.entry import UNPATCHED
from hf_posenc.schemes.spec import SchemeSpec


@dataclass(frozen=True)
class Probe:
    """Result of `probe`.

    Attributes:
        variants: the model as passed; then, with a scheme, the model patched with it.
        trained_length: pre-training context length in tokens.
        samples: number of texts.
    """

    variants: tuple[Variant, ...]
    trained_length: int
    samples: int

    @property
    def moved(self) -> Tensor | None:
        """Share of each head's attention that the scheme moves to other distances, 0 … 1, ``[layers, heads]``.

        The total variation distance between the two profiles. None if there is one variant only, or if the two were
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
            "trained_length": self.trained_length, "samples": self.samples,
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
    samples: int = 4,
    rows: int = 256,
    seed: int = 0,
    progress: StepCallback = lambda doing: None,
    **options: Any,
) -> Probe:
    """Measure where a model's heads attend, and which of them use position.

    Args:
        model: a model, patched or not, in the same state afterwards; or a name that `from_pretrained` accepts.
        tokenizer: fast tokenizer of the model; required unless the model is a name.
        scheme, factor, target_length, options: as in `patch_model`. With a scheme, the model is measured twice: as it
            is, and patched with this scheme instead.
        length: tokens per text; by default the target length of the scheme. Without a scheme, the default is the size
            of the position table, or twice the trained length.
        text, text_field: as in `hf_posenc.eval.evaluate`.
        samples: number of texts, spread evenly over the documents.
        rows: attention rows measured per text; 64 rows are in memory at a time.
        seed: random seed of the position shuffle.
        progress: called with a description of the current step.

    Raises:
        TextTooShort: the documents have not enough text.
        LengthTooShort: a text of ``length`` tokens has no distances beyond the near ones.
        WeightsNotFinite: a weight is NaN or infinite.
        TaskOptionOutOfRange: a count is not a positive integer.
        UnknownOption: an option of a scheme is passed without a scheme.
        PosEncError: the scheme is refused, or no model has this name.
    """
    scheme_arguments = {"factor": factor, "target_length": target_length, **options}
    if scheme is None and (unused := [name for name, value in scheme_arguments.items() if value is not None]):
        raise UnknownOption(
            f"{unused[0]!r} belongs to a scheme, and no scheme is passed. Pass scheme=, or length= for longer texts."
        )
    if isinstance(model, (str, os.PathLike)):
        tokenizer = tokenizer_of(ModelName.of(model)) if tokenizer is None else tokenizer
        model = from_pretrained(model)
    check_arguments(model, tokenizer, length=length, samples=samples, rows=rows, seed=seed)
    own_text = measured_text(text, field=text_field)
    with evaluation_mode(model):
        trained, reach, table = lengths_of(model, scheme, factor, target_length, options)
        probed = length or reach
        check_text_memory(model, probed)

        def measured(label: str, tokens: int) -> Variant:
            texts = probed_texts(model, tokenizer, own_text, tokens, samples)
            return measure(model, texts, label, progress, trained_length=trained, rows=rows, seed=seed)

        if is_patched(model):
            variants = [measured(describe(model).scheme, probed)]
            target_length = target_length or (describe(model).target_length if factor is None else None)
        else:
            variants = [measured(UNPATCHED, probed if table is None else min(probed, table))]
        if scheme is not None:
            with scheme_set_aside(model):
                patch_model(model, scheme, factor=factor, target_length=target_length, **options)
                variants.append(measured(describe(model).scheme, probed))
    return Probe(tuple(variants), trained, samples)


def check_arguments(model: nn.Module, tokenizer: Any, *, length: int | None, seed: int, **counts: int) -> None:
    """Validate the arguments before the model is changed."""
    base_model_of(model)
    check_loaded(model)
    if isinstance(tokenizer, str) or not callable(tokenizer):
        raise WrongKind(f"A tokenizer is needed, got {shown(tokenizer)}. Pass AutoTokenizer.from_pretrained(...).")
    if length is not None:
        checked("length", Count, length)
    for name, value in counts.items():
        checked(name, Count, value)
    checked("seed", Seed, seed)


def lengths_of(
    model: nn.Module, scheme: SchemeSpec | None, factor: float | None, target: int | None, options: Mapping[str, Any]
) -> tuple[int, int, int | None]:
    """Return trained length, default probed length, and size of the position table or None, in tokens."""
    base, adapter = base_model_of(model)
    patch = describe(model) if is_patched(model) else None
    trained = patch.trained_length if patch else trained_length_of_patch(adapter, base.config, scheme, options)
    table = adapter.geometry(base.config, trained_length=trained, target_length=trained).table
    if patch is not None:
        return trained, patch.target_length, table
    if target is not None or factor is not None:
        return trained, target or int(trained * (factor or 1)), table
    return trained, 2 * trained if table is None else table, table


def probed_texts(model: nn.Module, tokenizer: Any, text: MeasuredText, length: int, samples: int) -> list[Tensor]:
    """Cut texts out of the documents, with the tokenizer's special tokens around each, ``[1, token]``."""
    prefix, suffix = frame_of(tokenizer)
    documents = [source.ids for source in tokenized_documents(tokenizer, text)]
    highest = max((token for ids in (prefix, *documents, suffix) for token in ids), default=0)
    check_vocabulary(base_model_of(model)[0], highest)
    special = len(prefix) + len(suffix)
    if length - special <= NEAR:
        raise LengthTooShort(
            f"In a text of {length} tokens every distance is near: {NEAR} tokens or fewer. "
            f"Pass a length of at least {NEAR + special + 1}."
        )
    device = next(model.parameters()).device
    passages = cut_passages(documents, length - special, samples)
    return [torch.tensor([[*prefix, *passage, *suffix]], device=device) for passage in passages]


def cut_passages(documents: Sequence[Sequence[int]], length: int, samples: int) -> Iterator[Sequence[int]]:
    """Cut ``samples`` different passages of ``length`` tokens, spread evenly over the documents; they may overlap."""
    starts = [max(0, len(ids) - length + 1) for ids in documents]
    if sum(starts) < samples:
        raise TextTooShort(
            f"{samples} texts of {length} tokens were asked for, and the text has {sum(map(len, documents))} tokens, "
            f"its longest document {max(map(len, documents))}. Pass longer texts, a shorter length or fewer samples."
        )
    for ids, count in zip(documents, shares(starts, samples), strict=True):
        for i in range(count):
            start = i * (len(ids) - length) // max(1, count - 1)
            yield ids[start : start + length]


def shares(capacities: Sequence[int], count: int) -> list[int]:
    """Divide ``count`` in proportion to the capacities by largest remainders; no share exceeds its capacity."""
    total = sum(capacities)
    quotas = [count * capacity // total for capacity in capacities]
    by_remainder = sorted(range(len(capacities)), key=lambda index: -(count * capacities[index] % total))
    for index in by_remainder[: count - sum(quotas)]:
        quotas[index] += 1
    return quotas
