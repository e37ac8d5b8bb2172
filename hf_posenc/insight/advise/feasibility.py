"""Warnings about what is not feasible, or has no evidence."""

from __future__ import annotations

from collections.abc import Iterator

from hf_posenc.insight.advise.evidence import LARGEST_GROUP
from hf_posenc.insight.advise.recommendation import Recommendation
from hf_posenc.insight.advise.report import Advice
from hf_posenc.insight.advise.target_model import TargetModel
from hf_posenc.insight.advise.units import size


def warnings_of(advice: Advice, model: TargetModel) -> Iterator[str]:
    """Yield warnings of one or two sentences each, the graver ones first."""
    if model.unsupported:
        yield model.unsupported
    yield from _about_length(advice, model)
    yield from _about_memory(advice)
    yield from _about_reach(advice)
    yield from _about_configuration(advice, model)


def _about_length(advice: Advice, model: TargetModel) -> Iterator[str]:
    reach, target = advice.reach, advice.target_length
    if reach is not None and target < reach:
        yield f"The model reaches {reach:,} tokens as it stands: there is nothing to do for {target:,}."
    elif reach == target:
        yield f"The model reaches {target:,} tokens as it stands: there is nothing that must be done."
    elif model.adapter is not None and (table := model.geometry.table) is not None and model.block is None:
        yield f"The table ends after {table:,} rows: unpatched, a text of {target:,} tokens raises an error."


def _about_memory(advice: Advice) -> Iterator[str]:
    memory, largest = advice.memory, advice.memory.largest
    if largest is None:
        return
    room, device = largest
    both = memory.weights + memory.cache
    if both > room:
        less = any(one.kept < advice.target_length for one in advice.recommendations)
        yield (
            f"Weights and the full cache of one text take {size(both)}; this machine has {size(room)} of {device}."
            + (" Schemes with eviction keep less." if less else "")
        )


def _about_reach(advice: Advice) -> Iterator[str]:
    for found, how in ((advice.zero_shot, "without training"), (advice.training, "with training")):
        figures = [one for one in found if one.shown_factor is not None and one.kept == advice.target_length]
        if figures and all(one.beyond for one in figures):
            best = max(figures, key=lambda one: one.shown_factor or 0)
            yield (
                f"Nothing that keeps all tokens has been shown this far {how}; the farthest is {best.scheme}, "
                f"{best.shown_factor:g} × ({best.source})."
            )
    yield from (
        f"self_extend needs groups of {group:,} tokens here; its authors used 2 to {LARGEST_GROUP} (arXiv:2401.01325)."
        for group in _groups(advice.zero_shot)
        if group > LARGEST_GROUP
    )


def _groups(found: tuple[Recommendation, ...]) -> list[int]:
    return [one.options["group"] for one in found if "group" in one.options]


def _about_configuration(advice: Advice, model: TargetModel) -> Iterator[str]:
    if model.block is not None:
        yield (
            "The checkpoint carries a scheme: load it with hf_posenc.from_pretrained. The lines below take that off "
            "first, which no command does, and weights that were tuned under it want tuning again."
        )
    elif model.scaling is not None and advice.training:
        yield (
            f"The configuration scales RoPE by {model.scaling!r} already. Schemes on top of that count from "
            f"{model.reach:,} tokens; those that replace it count from {model.trained:,} and want tuning."
        )
    window = getattr(model.config, "sliding_window", None)
    if window:
        yield f"Some or all layers see no more than the last {window:,} tokens."
