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
from hf_posenc.insight.probe.loss_by_context import SpecialTokenCounts
from hf_posenc.insight.probe.variant import ProbePlan, Variant, measure
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
        variants: the model as given; then, where a scheme is given, the model patched with it.
        trained_length: pre-training context length in tokens.
        samples: number of texts.
    """

    variants: tuple[Variant, ...]
    trained_length: int
    samples: int

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
    samples: int = 32,
    rows: int = 256,
    scored: int = 32,
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
        text, text_field: as in `hf_posenc.eval.evaluate`.
        samples: number of texts, spread evenly over the documents.
        rows: attention rows measured per text, in four of the texts; 64 rows are in memory at a time.
        scored: tokens at the end of each text whose loss is measured.
        seed: random seed of the position shuffle.
        progress: called with a description of the current step.

    Raises:
        TextTooShort: the documents have not enough text.
        LengthTooShort: ``length`` has no room for the scored tokens.
        WeightsNotFinite: a weight is NaN or infinite.
        TaskOptionOutOfRange: a count is not a positive integer.
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
    check_arguments(model, tokenizer, length=length, samples=samples, rows=rows, scored=scored, seed=seed)
    own_text = measured_text(text, field=text_field)
    with evaluation_mode(model):
        trained, reach, table = lengths_of(model, scheme, factor, target_length, options)
        probed = length or reach
        check_text_memory(model, probed)
        settings = {"samples": samples, "rows": rows, "scored": scored, "seed": seed}

        def measured(label: str, tokens: int) -> Variant:
            return measure(model, plan_of(model, tokenizer, own_text, tokens, trained, **settings), label, progress)

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
    """Trained length, length that is probed by default, and size of the position table or None, in tokens."""
    base, adapter = base_model_of(model)
    carried = describe(model) if is_patched(model) else None
    trained = carried.trained_length if carried else trained_length_of_patch(adapter, base.config, scheme, options)
    table = adapter.geometry(base.config, trained_length=trained, target_length=trained).table
    if carried is not None:
        return trained, carried.target_length, table
    if target is not None or factor is not None:
        return trained, target or int(trained * (factor or 1)), table
    return trained, 2 * trained if table is None else table, table


def plan_of(
    model: nn.Module, tokenizer: Any, text: MeasuredText, length: int, trained: int, *, samples: int, **settings: Any
) -> ProbePlan:
    """Cut texts of ``length`` tokens out of documents, and choose the context lengths at which they are scored."""
    prefix, suffix = frame_of(tokenizer)
    special = SpecialTokenCounts(len(prefix), len(suffix))
    documents = [source.ids for source in tokenized_documents(tokenizer, text)]
    highest = max((token for ids in (prefix, *documents, suffix) for token in ids), default=0)
    check_vocabulary(base_model_of(model)[0], highest)
    inner, scored = length - special.before - special.after, settings["scored"]
    shortest = 2 * scored + special.before + special.after
    if inner < 2 * scored:
        raise LengthTooShort(
            f"A length of {length} tokens has no room for context before {scored} scored ones. "
            f"Ask for a length of at least {shortest}, or score fewer tokens."
        )
    device = next(model.parameters()).device
    texts = [
        torch.tensor([[*prefix, *piece, *suffix]], device=device) for piece in pieces(documents, inner, samples, scored)
    ]
    return ProbePlan(texts, special, trained, context_lengths(length, trained, shortest), **settings)


def pieces(documents: Sequence[Sequence[int]], length: int, samples: int, scored: int) -> Iterator[Sequence[int]]:
    """Cut ``samples`` pieces of ``length`` tokens, spread evenly over documents; no two score the same tokens."""
    rooms = [max(0, (len(ids) - length) // scored + 1) for ids in documents]
    if sum(rooms) < samples:
        raise TextTooShort(
            f"{samples} texts of {length} tokens were asked for, and the text has {sum(map(len, documents))} tokens, "
            f"its longest document {max(map(len, documents))}. Give longer ones, a shorter length or fewer samples."
        )
    for ids, count in zip(documents, shares(rooms, samples), strict=True):
        for i in range(count):
            start = i * (len(ids) - length) // max(1, count - 1)
            yield ids[start : start + length]


def context_lengths(length: int, trained: int, least: int) -> tuple[int, ...]:
    """Halve the length repeatedly down to ``least``, and include the trained length; ascending, in tokens."""
    found: Sequence[int] = [length]
    while found[-1] // 2 >= least:
        found = [*found, found[-1] // 2]
    return tuple(sorted({*found, *([trained] if least <= trained < length else [])}))


def shares(rooms: Sequence[int], count: int) -> list[int]:
    """Divide ``count`` in proportion to ``rooms``, none of which gets more than it has (largest remainders)."""
    total = sum(rooms)
    found = [count * room // total for room in rooms]
    by_remainder = sorted(range(len(rooms)), key=lambda index: -(count * rooms[index] % total))
    for index in by_remainder[: count - sum(found)]:
        found[index] += 1
    return found
