"""Search for LongRoPE's factors on a text: one stretch a pair, grown from the best known ones by CMA-ES.

    minimise over x:  loss of the text's end under long_m(x)
    ln long_m(x) = max over k ≤ m of max(0, ln seed_k + c_k(x))          c: piecewise linear in the pair, knots x

So factors are at least 1 and never fall with the pair, as the paper's search demands, and x = 0 is the seed itself: one
stretch for all pairs (position interpolation), that of a larger base (NTK) or the one by parts, whichever fits the text
best. The result can therefore not be worse than any of them. The paper evolves lists by mutation and crossover; CMA-ES
(Hansen 2016, arXiv:1604.00772; pycma) gets as far in tens of evaluations.

Ding et al. 2024, "LongRoPE", arXiv:2402.13753, section 3.2.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_posenc.checkpoints.model_digest import model_digest
from hf_posenc.core.evaluation_mode import evaluation_mode
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.lengths import resolve_lengths
from hf_posenc.errors import LengthContradiction, MissingPackage, OptionOutOfRange, shown
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.patching.state import base_model_of
from hf_posenc.schemes.rotary.ntk import NTK
from hf_posenc.schemes.rotary.rotary import Rotary
from hf_posenc.schemes.rotary.yarn import NTKByParts
from hf_posenc.training.search_log import Factors, Progress, SearchLog

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEEDS: dict[str, Callable[[Geometry], Factors]] = {
    "uniform": lambda geometry: (geometry.factor,) * (geometry.rotary_dim // 2),
    "ntk": lambda geometry: stretch_of(NTK(geometry)),
    "ntk_parts": lambda geometry: stretch_of(NTKByParts(geometry)),
}


@dataclass(frozen=True)
class LongRopeSearchResult:
    """What a search found.

    Attributes:
        long_factor: for ``patch_model(model, "longrope", factor=…, long_factor=…)``.
        loss: of the text under it, nats/token.
        uniform_loss: with one stretch for all pairs.
        grown_from: the seed it began with: ``uniform``, ``ntk`` or ``ntk_parts``.
        history: the loss of every evaluation, the seeds' first.
    """

    long_factor: Factors
    loss: float
    uniform_loss: float
    grown_from: str
    history: Factors


def search_longrope(
    model: PreTrainedModel,
    tokens: Tensor,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    trained_length: int | None = None,
    budget: int = 60,
    seed: int = 0,
    knots: int = 8,
    spread: float = 0.2,
    state: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> LongRopeSearchResult:
    """Find the ``long_factor`` under which a model reads the ends of long texts best.

    Args:
        model: an unpatched decoder; it is given back as it was.
        tokens: texts ``[text, token]``, longer than the trained length and at most as long as the target. What lies
            beyond the trained length is scored, which is where ``long_factor`` is in use. Keep other texts to judge by.
        factor, target_length, trained_length: as in `patch_model`; two give the third.
        budget: how often the texts are read, at least once for each of three seeds.
        seed: of the optimiser's draws.
        knots: numbers that are searched for, at most one a pair.
        spread: standard deviation of the first draws, in logarithms of factors.
        state: a file that keeps every loss and the best factors so far. A search that was stopped goes on from it.
        progress: called after every evaluation with its number, its loss and the best so far.

    Raises:
        MissingPackage: pycma is not installed.
        LengthContradiction: the texts are too short, too long, or lengths contradict each other.
        CheckpointMismatch: ``state`` belongs to another search, such as one on another model, or is damaged.
        OptionOutOfRange: ``budget`` does not pay for the seeds, or ``knots`` is below 1.
    """
    _check_whole("budget", budget, len(SEEDS), "one reading a seed", 60)
    _check_whole("knots", knots, 1, "one stretch for all pairs", 8)
    geometry = _geometry(model, factor, target_length, trained_length)
    _check_texts(tokens, geometry)
    settings = {
        "trained_length": geometry.trained_length, "target_length": geometry.target_length, "seed": seed,
        "knots": knots, "spread": spread, "tokens": hashlib.sha256(tokens.cpu().long().numpy().tobytes()).hexdigest(),
        "model": model_digest(model),
    }  # fmt: skip
    log = SearchLog(None if state is None else Path(state), settings, progress)

    def measure(long_factor: Factors) -> float:
        return log.enter(long_factor, lambda: loss_under(long_factor, model, tokens, geometry))

    seeds = {name: make(geometry) for name, make in SEEDS.items()}
    losses = {name: measure(factors) for name, factors in seeds.items()}
    best_seed = min(losses, key=losses.__getitem__)
    grow(seeds[best_seed], measure, budget - len(SEEDS), seed=seed, knots=knots, spread=spread)
    loss, long_factor = log.best
    return LongRopeSearchResult(long_factor, loss, losses["uniform"], best_seed, tuple(log.losses))


def grow(
    start: Factors, measure: Callable[[Factors], float], budget: int, *, seed: int, knots: int, spread: float
) -> None:
    """CMA-ES over corrections of ``start``; what it tries goes to ``measure``, ``budget`` times."""
    knots = min(knots, len(start))
    draws = np.random.RandomState(seed)  # its own, so that numpy's global state is nobody's business
    options = {"seed": math.nan, "randn": draws.randn, "verbose": -9}
    strategy = _cma().CMAEvolutionStrategy(np.zeros(max(knots, 2)), spread, options)
    while budget > 0 and not strategy.stop():
        tried = strategy.ask()
        losses = [measure(corrected(start, x[:knots])) for x in tried[:budget]]
        budget -= len(losses)
        if len(losses) == len(tried):
            strategy.tell(tried, losses)


def corrected(start: Factors, knots: np.ndarray) -> Factors:
    """``start`` with its logarithms moved by the piecewise linear curve through ``knots``; ≥ 1 and never falling."""
    pairs = np.arange(len(start))
    moved = np.log(start) + np.interp(pairs, np.linspace(0, len(start) - 1, len(knots)), knots)
    return tuple(np.exp(np.maximum.accumulate(np.maximum(moved, 0.0))).tolist())


def loss_under(long_factor: Factors, model: PreTrainedModel, tokens: Tensor, geometry: Geometry) -> float:
    """Cross-entropy loss (nats/token) beyond the trained length, with the model patched for as long as it takes."""
    trained, target = geometry.trained_length, geometry.target_length
    options = {"trained_length": trained, "target_length": target, "long_factor": list(long_factor)}
    patch_model(model, "longrope", **options)  # type: ignore[arg-type]
    try:
        with evaluation_mode(model), torch.no_grad():
            return sum(_suffix_loss(model, text, tokens.shape[1] - trained - 1) for text in tokens) / len(tokens)
    finally:
        unpatch_model(model)


def stretch_of(scaled: Rotary) -> Factors:
    """What a scaling divides every frequency by."""
    unscaled = Rotary(scaled.geometry, base=scaled.base).frequencies()
    return tuple(max(w / v, 1.0) for w, v in zip(unscaled, scaled.frequencies(), strict=True))


def _geometry(
    model: PreTrainedModel, factor: float | None, target_length: int | None, trained_length: int | None
) -> Geometry:
    base, adapter = base_model_of(model)
    config: Any = base.config
    lengths = resolve_lengths(
        configured=adapter.trained_length(config),
        factor=factor,
        target_length=target_length,
        trained_length=trained_length,
    )
    return adapter.geometry(config, trained_length=lengths.trained, target_length=lengths.target)


def _check_whole(name: str, value: Any, least: int, why: str, usual: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionOutOfRange(
            f"{name} must be a whole number of at least {least}, {why}, got {shown(value)}. Try {usual}."
        )


def _check_texts(tokens: Tensor, geometry: Geometry) -> None:
    shortest, longest = geometry.trained_length + 2, geometry.target_length
    if tokens.ndim != 2 or not shortest <= tokens.shape[1] <= longest:
        raise LengthContradiction(
            f"tokens must be [text, token] with {shortest} to {longest} tokens a text, got {list(tokens.shape)}. "
            "Cut the texts to the target length."
        )


def _suffix_loss(model: Any, text: Tensor, scored: int) -> float:
    text = text.to(model.device)
    logits = model(text[None], logits_to_keep=scored + 1, use_cache=False).logits[0, :-1].float()
    return float(nn.functional.cross_entropy(logits, text[-scored:]))


def _cma() -> Any:
    try:
        return import_module("cma")
    except ImportError as error:
        raise MissingPackage(
            "The search needs pycma, which is not installed. pip install 'hf-posenc[search]'"
        ) from error
