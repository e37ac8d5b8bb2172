"""Look inside a trained model, as it comes and with a scheme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.memory import check_text_memory
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
from hf_posenc.insight.probe.loss_by_context import Frame
from hf_posenc.insight.probe.variant import (
    Plan,
    Tell,
    Variant,
    measure,
)
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.patching.preconditions.weights import check_finite, check_vocabulary
from hf_posenc.patching.state import base_model_of, describe, is_patched
from hf_posenc.schemes.spec import SchemeSpec

AS_IT_COMES = "as it comes"


@dataclass(frozen=True)
class Probe:
    """What was found.

    Attributes:
        sides: the model as it came; then, where a scheme was asked for, with it.
        trained_length: what the weights saw.
        samples: texts.
        sinks: tokens at the start that count as such.
    """

    sides: tuple[Variant, ...]
    trained_length: int
    samples: int
    sinks: int

    @property
    def moved(self) -> Tensor | None:
        """How much of each head's weight lies at other distances than before, 0 … 1, ``[layers, heads]``.

        Half the sum of all changes of mass. None where there is one side only, or they were read at other lengths.
        """
        if len(self.sides) < 2 or self.sides[0].length != self.sides[1].length:
            return None
        pairs = zip(self.sides[0].profiles, self.sides[1].profiles, strict=True)
        return torch.stack([(after.mass - before.mass).abs().sum(1) / 2 for before, after in pairs])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        moved = self.moved
        return {
            "trained_length": self.trained_length, "samples": self.samples, "sinks": self.sinks,
            "sides": [side.to_dict() for side in self.sides], "moved": None if moved is None else moved.tolist(),
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
    tell: Tell = lambda doing: None,
    **options: Any,
) -> Probe:
    """Measure where a model's heads look, which of them use position, and how much text it makes use of.

    Args:
        model: patched or not; it is as it was when this returns.
        tokenizer: of the model, a fast one.
        scheme, factor, target_length, options: as `patch_model` takes them; then both sides are measured.
        length: tokens of a text; by default what the scheme reaches, or else twice the trained length where the model
            has no table that ends.
        text: a file; by default held-out sources of the standard library.
        samples: texts, spread evenly over the file.
        rows: of each text whose attention is looked at (of four of the texts); memory is that of 64 rows.
        scored: tokens at the end of each text whose loss is measured.
        sinks: tokens at the start that count as such.
        seed: of the shuffle of positions.
        tell: called with what is going on.

    Raises:
        TextTooShort: the file has not enough text.
        LengthTooShort: ``length`` has no room for the scored tokens.
        WeightsNotFinite: a weight of the model is no number.
        TaskOptionOutOfRange: a count is none.
        PosEncError: the scheme is refused.
    """
    given = {"factor": factor, "target_length": target_length, **options}
    if scheme is None and (unused := [name for name, value in given.items() if value is not None]):
        raise UnknownOption(
            f"{unused[0]!r} belongs to a scheme, and none is asked for. Pass scheme=, or length= for longer texts."
        )
    check_asked(model, tokenizer, length=length, samples=samples, rows=rows, scored=scored, sinks=sinks, seed=seed)
    was_training = model.training
    model.eval()
    patched = False
    try:
        sides = []
        own = is_patched(model)
        trained, end = lengths_of(model)
        wanted = length or reach(model, factor, target_length, trained, end)
        check_text_memory(model, wanted)
        settings = {"samples": samples, "rows": rows, "scored": scored, "sinks": sinks, "seed": seed}
        first = wanted if own or end is None else min(wanted, end)
        label = describe(model).scheme if own else AS_IT_COMES
        sides.append(measure(model, plan_of(model, tokenizer, text, first, trained, **settings), label, tell))
        if scheme is not None:
            patch_model(model, scheme, factor=factor, target_length=target_length, **options)
            patched = True
            plan = plan_of(model, tokenizer, text, wanted, trained, **settings)
            sides.append(measure(model, plan, describe(model).scheme, tell))
    finally:
        if patched:
            unpatch_model(model)
        model.train(was_training)
    return Probe(tuple(sides), trained, samples, sinks)


def check_asked(model: nn.Module, tokenizer: Any, *, length: int | None, seed: int, **counts: int) -> None:
    """Refuse what cannot be measured, before the model is touched.

    Raises:
        UnsupportedModel: no adapter knows the model, or its weights are on the meta device.
        WeightsNotFinite: one of them is no number.
        WrongKind: there is no tokenizer.
        TaskOptionOutOfRange: a count or the seed is out of range.
    """
    base_model_of(model)
    if any(weight.is_meta for weight in model.parameters()):
        raise UnsupportedModel("The weights of this model are on the meta device. Load it before it is looked into.")
    check_finite(model)
    if isinstance(tokenizer, str) or not callable(tokenizer):
        raise WrongKind(f"A tokenizer is needed, got {shown(tokenizer)}. Pass AutoTokenizer.from_pretrained(...).")
    if length is not None:
        whole("length", length)
    for name, value in counts.items():
        whole(name, value)
    seed_of(seed)


def lengths_of(model: nn.Module) -> tuple[int, int | None]:
    """What the weights saw, and where a learned table of the host's ends, if it has one."""
    base, adapter = base_model_of(model)
    trained = describe(model).trained_length if is_patched(model) else adapter.trained_length(base.config)  # type: ignore[arg-type]
    return trained, adapter.geometry(base.config, trained_length=trained, target_length=trained).table  # type: ignore[arg-type]


def reach(model: nn.Module, factor: float | None, target: int | None, trained: int, end: int | None) -> int:
    """How long texts are where nobody says it."""
    if is_patched(model):
        return describe(model).target_length
    if target is not None or factor is not None:
        return target or int(trained * (factor or 1))
    return 2 * trained if end is None else end


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
    """Texts of a length, and the lengths at which they are scored."""
    front, behind = frame_of(tokenizer)
    frame = Frame(len(front), len(behind))
    ids = tokenized(tokenizer, source_text(file)).ids
    check_vocabulary(base_model_of(model)[0], max((*front, *ids, *behind), default=0))
    inner, scored = length - frame.front - frame.behind, settings["scored"]
    if inner < 2 * scored:
        raise LengthTooShort(
            f"A length of {length} tokens has no room for context before {scored} scored ones. "
            f"Ask for a length of at least {2 * scored + frame.front + frame.behind}, or score fewer tokens."
        )
    room = len(ids) - inner
    if room < (samples - 1) * scored:
        raise TextTooShort(
            f"{samples} texts of {length} tokens were asked for, and the file has {len(ids)} tokens. "
            "Give a longer file, a shorter length or fewer samples."
        )
    starts = [i * room // max(1, samples - 1) for i in range(samples)]
    device = next(model.parameters()).device
    texts = [torch.tensor([[*front, *ids[s : s + inner], *behind]], device=device) for s in starts]
    causal = bool(attentions_of(model)[0].is_causal)
    return Plan(
        texts, frame, trained, measured_lengths(length, trained, 2 * scored + frame.front + frame.behind),
        mask=None if causal else tokenizer.mask_token_id, **settings,
    )  # fmt: skip


def measured_lengths(length: int, trained: int, least: int) -> tuple[int, ...]:
    """The length halved again and again, and the trained length among them."""
    found: Sequence[int] = [length]
    while found[-1] // 2 >= least:
        found = [*found, found[-1] // 2]
    return tuple(sorted({*found, *([trained] if least <= trained < length else [])}))
