"""Compute advice from a configuration and a target length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hf_posenc.core.lengths import tokens
from hf_posenc.insight.advise.candidates import choose, keeps_positions
from hf_posenc.insight.advise.evidence import WITH_TRAINING, Shown, zero_shot_candidates
from hf_posenc.insight.advise.memory import kept_for_backward, measured, size, skeleton, training_memory
from hf_posenc.insight.advise.plan import Cards, Plan, Portable, plan
from hf_posenc.insight.advise.report import Advice
from hf_posenc.insight.advise.target_model import TargetModel
from hf_posenc.schemes.registry import scheme_class

NO_PLAN = (
    "There is no plan for these cards: nothing is to be trained for this length, PEFT is not installed, or the model "
    "cannot be run without weights."
)


def advise(
    model: Any,
    target_length: int | str,
    *,
    name: str | None = None,
    dtype: str | None = None,
    gpu: str | float | None = None,
) -> Advice:
    """Recommend schemes and options that extend a model to a length, with their memory, without loading weights.

    Args:
        model: a loaded model, a configuration, or the name of a model or PEFT adapter. From a name, only the
            configuration is loaded.
        target_length: tokens; also ``"128k"``, where k is 1024.
        name: name of the model in the commands; by default that of ``model``.
        dtype: dtype of weights and cache, such as ``"bfloat16"``; by default that of the configuration.
        gpu: memory of a card in GiB, such as ``80``, or ``"8x80"`` for eight cards. The advice then says what fits on
            them, with the commands from fine-tuning to serving.

    Returns:
        The advice; ``print`` it, or call ``to_dict()``.

    Raises:
        LengthContradiction: the target is not a valid length.
        OptionOutOfRange: ``gpu`` cannot be parsed.
        UnsupportedModel: there is no adapter for the architecture, or transformers itself does not know it.
        AlreadyPatched: the model carries a scheme.
    """
    cards = None if gpu is None else Cards.of(gpu)
    target = tokens(target_length)
    target_model = TargetModel.of(model, target, name, dtype)
    memory = target_model.memory
    advice = Advice(
        model=target_model.name,
        model_type=target_model.config.model_type,
        positions=target_model.positions,
        trained_length=target_model.trained,
        reach=target_model.reach,
        target_length=target,
        memory=memory,
    )
    if target > target_model.reach:
        zero_shot, refused = choose(target_model, "zero-shot", untrained(target_model))
        training, refused_training = choose(target_model, "training", WITH_TRAINING)
        step = training_memory(skeleton(target_model.config, dtype), target)
        tight = step is not None and memory.largest is not None and step.total > memory.largest[0]
        advice = replace(
            advice,
            zero_shot=zero_shot,
            training=tuple(replace(one, checkpointing=tight) for one in training),
            refused=refused | refused_training,
            training_memory=step,
        )
    if cards is not None and advice.training:
        advice = replace(advice, plan=plan_of(cards, advice, target_model))
    no_plan = [NO_PLAN] if cards is not None and advice.plan is None else []
    return replace(advice, warnings=(*warnings_of(advice, target_model), *no_plan))


def plan_of(cards: Cards, advice: Advice, model: TargetModel) -> Plan | None:
    """Plan the first recommendation with training; None if the memory of a training step is unknown."""
    target, one = advice.target_length, advice.training[0]
    step, bare = training_memory(skeleton(model.config, "bfloat16"), target), skeleton(model.config, "bfloat16")
    if step is None:
        return None
    memory, scheme = measured(bare, target, causal=model.geometry.causal), Portable.of(bare, one)
    layer = kept_for_backward(bare, target) // (model.config.num_hidden_layers * target)
    return plan(cards, one, step, memory, layer, scheme)


def untrained(target_model: TargetModel) -> list[Shown]:
    """Return the zero-shot candidates; a scaling that the weights were tuned with is extended, not replaced."""
    if target_model.scaling is None:
        return zero_shot_candidates()
    able = [
        shown
        for shown in zero_shot_candidates()
        if keeps_positions(shown.scheme) or any(scheme_class(part).stretches for part in shown.scheme.split("+"))
    ]
    return [one if keeps_positions(one.scheme) else replace(one, scheme=f"host+{one.scheme}") for one in able]


def warnings_of(advice: Advice, model: TargetModel) -> Iterator[str]:
    """Yield warnings of one or two sentences each, the most serious first."""
    reach, target, memory = advice.reach, advice.target_length, advice.memory
    if target <= reach:
        yield f"The model reaches {reach:,} tokens as it stands, so {target:,} tokens need no scheme."
    elif (table := model.geometry.table) is not None:
        yield f"The table ends after {table:,} rows: unpatched, a text of {target:,} tokens raises an error."
    if memory.largest is not None and memory.weights + memory.cache > memory.largest[0]:
        room, device = memory.largest
        yield (
            f"Weights and the full cache of one text take {size(memory.weights + memory.cache)}; this machine has "
            f"{size(room)} of {device}."
        )
    if advice.recommendations and not advice.recommendations[0].has_head:
        yield "The checkpoint has no head, so no command measures or trains it. Patch it and train it for its own task."
    yield from training_warnings(advice)
    if model.scaling is not None and advice.training:
        yield (
            f"The configuration scales RoPE by {model.scaling!r} already. Schemes on top of that count from "
            f"{reach:,} tokens; those that replace it count from {model.trained:,} and want tuning."
        )
    if window := getattr(model.config, "sliding_window", None):
        yield f"Some or all layers see no more than the last {window:,} tokens."


def training_warnings(advice: Advice) -> Iterator[str]:
    """Yield a warning if training on a whole row does not fit on the given cards, or else on this machine."""
    plan, step, largest = advice.plan, advice.training_memory, advice.memory.largest
    if plan is not None and plan.best.longest < plan.wanted:
        least, room = min(way.needed for way in plan.fits), plan.cards.room
        yield f"Training a row of {plan.wanted:,} takes {size(least)} a card or more; tensors have {size(room)} there."
    elif plan is None and step is not None and largest is not None and step.total_checkpointed > largest[0]:
        yield (
            f"A LoRA step on a row of {step.length:,} takes {size(step.total_checkpointed)} with gradient "
            f"checkpointing; this machine has {size(largest[0])} of {largest[1]}."
        )
