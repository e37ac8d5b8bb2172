"""Probe a trained model, unpatched and with a scheme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.memory import check_text_room
from hf_posenc.errors import (
    UnknownOption,
    UnsupportedModel,
    WrongKind,
    shown,
)
from hf_posenc.eval.errors import LengthTooShort, TextTooShort
from hf_posenc.eval.lm.special_tokens import frame_of
from hf_posenc.eval.tasks.sweep import seed_of, whole
from hf_posenc.eval.texts.windows import source_text, tokenized
from hf_posenc.insight.probe.capture import attentions_of
from hf_posenc.insight.probe.loss_by_context import SpecialTokenCounts
from hf_posenc.insight.probe.variant import (
    Plan,
    ProgressCallback,
    Variant,
    measure,
)
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.patching.preconditions.weights import check_finite, check_vocabulary
from hf_posenc.patching.state import base_model_of, describe, is_patched
from hf_posenc.schemes.spec import SchemeSpec

UNPATCHED = "unpatched"


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
            "sides": [variant.to_dict() for variant in self.variants],
            "moved": None if moved is None else moved.tolist(),
        }  # fmt: skip


def probe(
    model: nn.Module,
    tokenizer: Any,
    *,
    scheme: SchemeSpec | None = None,
    factor: float | None = None,
    target_length: int | None = None,
    length: int | None = None,
    text: str | Path | None = None,
    samples: int = 32,
    rows: int = 256,
    scored: int = 32,
    sinks: int = 1,
    seed: int = 0,
    progress: ProgressCallback = lambda doing: None,
    **options: Any,
) -> Probe:
    """Measure where a model's heads attend, which of them use position, and how much context the model uses.

    Args:
        model: patched or not; restored to its state when this returns.
        tokenizer: fast tokenizer of the model.
        scheme, factor, target_length, options: as in `patch_model`; with a scheme, both variants are measured.
        length: tokens per text; by default the target length of the scheme, else the size of the position table or,
            without a table, twice the trained length.
        text: text file; by default held-out sources of the standard library.
        samples: number of texts, spread evenly over the file.
        rows: attention rows measured per text, in four of the texts; 64 rows are in memory at a time.
        scored: tokens at the end of each text whose loss is measured.
        sinks: tokens at the start that count as attention sink.
        seed: random seed of the position shuffle.
        progress: called with a description of the current step.

    Raises:
        TextTooShort: the file has not enough text.
        LengthTooShort: ``length`` has no room for the scored tokens.
        WeightsNotFinite: a weight is NaN or infinite.
        TaskOptionOutOfRange: a count is not a positive integer.
        PosEncError: the scheme is refused.
    """
    given = {"factor": factor, "target_length": target_length, **options}
    if scheme is None and (unused := [name for name, value in given.items() if value is not None]):
        raise UnknownOption(
            f"{unused[0]!r} belongs to a scheme, and none is asked for. Pass scheme=, or length= for longer texts."
        )
    check_arguments(model, tokenizer, length=length, samples=samples, rows=rows, scored=scored, sinks=sinks, seed=seed)
    was_training = model.training
    model.eval()
    patched = False
    try:
        variants = []
        is_patched_already = is_patched(model)
        trained, table_size = lengths_of(model)
        probed = length or default_length(model, factor, target_length, trained, table_size)
        check_text_room(model, probed)
        settings = {"samples": samples, "rows": rows, "scored": scored, "sinks": sinks, "seed": seed}
        first = probed if is_patched_already or table_size is None else min(probed, table_size)
        label = describe(model).scheme if is_patched_already else UNPATCHED
        variants.append(measure(model, plan_of(model, tokenizer, text, first, trained, **settings), label, progress))
        if scheme is not None:
            patch_model(model, scheme, factor=factor, target_length=target_length, **options)
            patched = True
            plan = plan_of(model, tokenizer, text, probed, trained, **settings)
            variants.append(measure(model, plan, describe(model).scheme, progress))
    finally:
        if patched:
            unpatch_model(model)
        model.train(was_training)
    return Probe(tuple(variants), trained, samples, sinks)


def check_arguments(model: nn.Module, tokenizer: Any, *, length: int | None, seed: int, **counts: int) -> None:
    """Validate the arguments before the model is changed.

    Raises:
        UnsupportedModel: no adapter knows the model, or its weights are on the meta device.
        WeightsNotFinite: a weight is NaN or infinite.
        WrongKind: there is no tokenizer.
        TaskOptionOutOfRange: a count or the seed is out of range.
    """
    base_model_of(model)
    if any(weight.is_meta for weight in model.parameters()):
        raise UnsupportedModel("The weights of this model are on the meta device. Load the weights before probing it.")
    check_finite(model)
    if isinstance(tokenizer, str) or not callable(tokenizer):
        raise WrongKind(f"A tokenizer is needed, got {shown(tokenizer)}. Pass AutoTokenizer.from_pretrained(...).")
    if length is not None:
        whole("length", length)
    for name, value in counts.items():
        whole(name, value)
    seed_of(seed)


def lengths_of(model: nn.Module) -> tuple[int, int | None]:
    """Return the trained length and the size of the model's position table in tokens (None without a table)."""
    base, adapter = base_model_of(model)
    trained = describe(model).trained_length if is_patched(model) else adapter.trained_length(base.config)  # type: ignore[arg-type]
    return trained, adapter.geometry(base.config, trained_length=trained, target_length=trained).table  # type: ignore[arg-type]


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
    file: str | Path | None,
    length: int,
    trained: int,
    *,
    samples: int,
    **settings: Any,
) -> Plan:
    """Cut texts of ``length`` tokens out of a file, and choose the context lengths at which they are scored.

    Raises:
        LengthTooShort: there is no room for context before the scored tokens.
        TextTooShort: the file has not enough text.
    """
    prefix, suffix = frame_of(tokenizer)
    special = SpecialTokenCounts(len(prefix), len(suffix))
    ids = tokenized(tokenizer, source_text(file)).ids
    check_vocabulary(base_model_of(model)[0], max((*prefix, *ids, *suffix), default=0))
    inner, scored = length - special.before - special.after, settings["scored"]
    shortest = 2 * scored + special.before + special.after
    if inner < 2 * scored:
        raise LengthTooShort(
            f"A length of {length} tokens has no room for context before {scored} scored ones. "
            f"Ask for a length of at least {shortest}, or score fewer tokens."
        )
    last_start = len(ids) - inner
    if last_start < (samples - 1) * scored:
        raise TextTooShort(
            f"{samples} texts of {length} tokens were asked for, and the file has {len(ids)} tokens. "
            "Give a longer file, a shorter length or fewer samples."
        )
    starts = [i * last_start // max(1, samples - 1) for i in range(samples)]
    device = next(model.parameters()).device
    texts = [torch.tensor([[*prefix, *ids[s : s + inner], *suffix]], device=device) for s in starts]
    causal = bool(attentions_of(model)[0].is_causal)
    return Plan(
        texts, special, trained, context_lengths(length, trained, shortest),
        mask=None if causal else tokenizer.mask_token_id, **settings,
    )  # fmt: skip


def context_lengths(length: int, trained: int, least: int) -> tuple[int, ...]:
    """Halve the length repeatedly down to ``least``, and include the trained length; ascending, in tokens."""
    found: Sequence[int] = [length]
    while found[-1] // 2 >= least:
        found = [*found, found[-1] // 2]
    return tuple(sorted({*found, *([trained] if least <= trained < length else [])}))
