"""Plan a probe: validate its arguments, choose its context lengths, and cut its texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hf_posenc.errors import UnsupportedModel, WrongKind, shown
from hf_posenc.eval.errors import LengthTooShort, TaskOptionOutOfRange, TextTooShort
from hf_posenc.eval.lm.spans import frame_of
from hf_posenc.eval.tasks.sweep import Count, Seed, checked
from hf_posenc.eval.texts.measured_text import MeasuredText
from hf_posenc.eval.texts.windows import tokenized_documents
from hf_posenc.insight.probe.loss_by_context import SpecialTokenCounts
from hf_posenc.insight.probe.variant import ProbePlan
from hf_posenc.patching.layer_schemes import is_causal, trained_length_of_patch
from hf_posenc.patching.state import base_model_of, describe, is_patched
from hf_posenc.patching.weights import check_finite, check_vocabulary
from hf_posenc.schemes.spec import SchemeSpec


def check_arguments(model: nn.Module, tokenizer: Any, *, length: int | None, seed: int, **counts: int) -> None:
    """Validate the arguments before the model is changed."""
    base_model_of(model)
    if any(weight.is_meta for weight in model.parameters()):
        raise UnsupportedModel("The weights of this model are on the meta device. Load the weights before probing it.")
    check_finite(model)
    if isinstance(tokenizer, str) or not callable(tokenizer):
        raise WrongKind(f"A tokenizer is needed, got {shown(tokenizer)}. Pass AutoTokenizer.from_pretrained(...).")
    if length is not None:
        checked("length", Count, length)
    for name, value in counts.items():
        checked(name, Count, value)
    checked("seed", Seed, seed)


def lengths_of(
    model: nn.Module, scheme: SchemeSpec | None = None, options: Mapping[str, Any] | None = None
) -> tuple[int, int | None]:
    """The trained length, under a scheme to be patched in, and the size of the model's table, or None; in tokens."""
    base, adapter = base_model_of(model)
    if is_patched(model):
        trained = describe(model).trained_length
    else:
        trained = trained_length_of_patch(adapter, base.config, scheme, options)
    return trained, adapter.geometry(base.config, trained_length=trained, target_length=trained).table


def default_length(
    model: nn.Module, factor: float | None, target: int | None, trained: int, table_size: int | None
) -> int:
    """Return the text length in tokens that is probed by default."""
    if is_patched(model):
        return describe(model).target_length
    if target is not None or factor is not None:
        return target or int(trained * (factor or 1))
    return 2 * trained if table_size is None else table_size


def plan_of(
    model: nn.Module,
    tokenizer: Any,
    text: MeasuredText,
    length: int,
    trained: int,
    *,
    samples: int,
    **settings: Any,
) -> ProbePlan:
    """Cut texts of ``length`` tokens out of documents, and choose the context lengths at which they are scored."""
    if settings["sinks"] >= length:
        raise TaskOptionOutOfRange(
            f"sinks must be fewer than the {length} tokens of a text, got {settings['sinks']}. Pass for example 4."
        )
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
    return ProbePlan(
        texts, special, trained, context_lengths(length, trained, shortest),
        mask=None if is_causal(model) else tokenizer.mask_token_id, **settings,
    )  # fmt: skip


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
