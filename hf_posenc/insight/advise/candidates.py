"""Candidate schemes: each is patched into the model without weights, and the ones that fit are ranked.

Ranks, best first: schemes that found passkeys at the requested factor or a larger one; schemes published at this
factor; schemes with evidence at smaller factors only; schemes that were measured and found no passkeys; unmeasured
schemes that evict tokens. Measured schemes keep their measured order. Ties keep the order of
`hf_posenc.insight.advise.evidence`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import NoEffect, PosEncError
from hf_posenc.forward.current_forward import schemes_of_base
from hf_posenc.insight.advise.evidence import MeasuredRow, RealRow, Shown, measured_for, real_rows
from hf_posenc.insight.advise.memory import cache_under, kept_tokens
from hf_posenc.insight.advise.recommendation import Recommendation
from hf_posenc.insight.advise.target_model import TargetModel
from hf_posenc.patching.expected_effect import differs_from_host, spread_positions
from hf_posenc.patching.patch import patch_model, scheme_set_aside
from hf_posenc.patching.state import base_model_of
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.alibi import code_slopes
from hf_posenc.schemes.host_rotation import HostRotation
from hf_posenc.schemes.registry import scheme_class, scheme_record


def recommendation(model: TargetModel, use: str, shown: Shown) -> Recommendation:
    """Build the recommendation of a scheme for a use, ``zero-shot`` or ``training``.

    Raises:
        PosEncError: the scheme cannot be patched into the model.
    """
    lengths = {"target_length": model.target}
    if model.overwrites_scaling(shown.scheme):  # then `patch_model` requires the trained length
        lengths = {"trained_length": model.counts_from(shown.scheme), **lengths}
    options, by_rule = options_of(model, shown.scheme, lengths)
    scheme = built(model, shown.scheme, lengths | options)
    factor = scheme.geometry.target_length / scheme.geometry.trained_length
    # What was measured is the zero-shot use of decoders that rotate queries and keys.
    similar = use == "zero-shot" and model.geometry.causal and model.geometry.rotary is not None
    evidence = measured_for(factor).get(shown.scheme) if similar else None
    real = real_rows().get(shown.scheme) if similar else None
    return Recommendation(
        scheme=shown.scheme,
        use=use,
        options=written_out(scheme) | options,
        lengths=lengths,
        reason=reason_of(shown, real, evidence, by_rule),
        shown_factor=shown.factor,
        source=shown.source,
        beyond=is_beyond(factor, shown, evidence),
        evidence=evidence,
        cache=cache_under(scheme, model.memory, model.target),
        kept=kept_tokens(scheme, model.target),
        model=model.name,
        trained=scheme.geometry.trained_length,
        has_head=model.has_head,
    )


def built(model: TargetModel, name: str, arguments: Mapping[str, Any]) -> Scheme:
    """Patch the model without weights, and return the scheme.

    Raises:
        PosEncError: the scheme cannot be patched into the model.
        NoEffect: the scheme would not change the model.
    """
    with scheme_set_aside(model.skeleton):
        patch_model(model.skeleton, name, **arguments)
        schemes = schemes_of_base(base_model_of(model.skeleton)[0])
    # Layers with sliding windows may keep the positions of the model: they have `HostRotation`.
    scheme = next((own for own in schemes if not isinstance(own, HostRotation)), schemes[0])
    geometry = scheme.geometry
    if geometry.relative and not differs_from_host(scheme, spread_positions(geometry.target_length), geometry):
        raise NoEffect(f"Scheme {name!r} would compute what this model does already at these lengths.")
    return scheme


def options_of(model: TargetModel, scheme: str, lengths: dict[str, int]) -> tuple[dict[str, Any], bool]:
    """Return the options of a scheme, from comparisons and from `RULES`, and whether a rule applied."""
    compared: dict[str, Any] = {}
    by_rule: dict[str, Any] = {}
    for part in scheme.split("+"):
        trained = lengths.get("trained_length") or model.counts_from(part)
        compared |= scheme_class(part).comparison_options(factor=model.target / trained, trained_length=trained)
        if part in RULES:
            by_rule |= RULES[part](replace(model.geometry, trained_length=trained, target_length=model.target))
    return compared | by_rule, bool(by_rule)


def choose(model: TargetModel, use: str, claims: Iterable[Shown]) -> tuple[tuple[Recommendation, ...], dict[str, str]]:
    """Return the candidates that fit, best first, and why the others do not."""
    geometry = model.geometry
    kind = "rotation" if geometry.table is None else "table"
    if geometry.slopes is not None:
        kind = "bias"
    found: list[Recommendation] = []
    refused: dict[str, str] = {}
    for shown in claims:
        if shown.kind != kind or not (geometry.causal or shown.encoders):
            continue
        try:
            found.append(recommendation(model, use, shown))
        except PosEncError as error:
            refused[shown.scheme] = " ".join(str(error).split())
    found.sort(key=lambda one: rank(one, model.target))
    return tuple(found), refused


def rank(one: Recommendation, target: int) -> tuple[Any, ...]:
    """Return the sort key, smaller is better; the ranks are in the docstring of this module."""
    row, factor = one.evidence, one.lengths["target_length"] / one.trained
    if row is not None:
        tier = 0 if row.factor >= factor else 2
        return tier if row.finds else 3, -row.factor, 0, *row.order
    if one.kept < target:
        return (4,)
    if one.shown_factor is None:
        return 3, -math.inf
    return (1,) if one.shown_factor >= factor else (2, -one.shown_factor, 1)


def is_beyond(factor: float, shown: Shown, evidence: MeasuredRow | None) -> bool:
    """Whether a factor exceeds all factors at which the scheme was published or measured to work."""
    reaches = (shown.factor, evidence.factor if evidence is not None and evidence.finds else None)
    known = [reach for reach in reaches if reach is not None]
    return factor > max(known) if known else evidence is not None


def reason_of(shown: Shown, real: RealRow | None, evidence: MeasuredRow | None, by_rule: bool) -> str:
    """Describe a scheme in one sentence: what it does, measurements, published claim.

    Args:
        shown: the scheme with its claim.
        real: its measurement on a real model.
        evidence: its measurement on a bundled model.
        by_rule: whether the printed options differ from the measured ones.
    """
    parts = [scheme_record(shown.scheme.split("+")[-1]).title.rstrip(".")]
    if real is not None:
        parts.append(str(real))
    if evidence is not None:
        parts.append(f"{evidence}{', with default options instead of these' if by_rule else ''}")
    if shown.claim:
        parts.append(f"published: {shown.claim} ({shown.source})")
    return "; ".join(parts) + "."


def keeps_positions(scheme: str) -> bool:
    """Whether a scheme or composition works on top of the model's own positions."""
    return not any(scheme_class(part).replaces_host for part in scheme.split("+"))


def written_out(scheme: Scheme) -> dict[str, int]:
    """Return the integer options that the scheme computed from its defaults, the rules of the papers."""
    return {
        name: value
        for part in scheme.schemes
        for name, parameter in list(inspect.signature(type(part).__init__).parameters.items())[2:]
        if parameter.default is None and type(value := getattr(part, name, None)) is int
    }


def well_trained_group(trained: int, target: int, window: int) -> int:
    """Return the smallest group G for which distances stay well trained: W + (target − W) / G < ⅔ L0.

    Long distances are rare in training; the authors' rule of thumb is (½ … ⅔) L0.
    Jin et al. 2024, arXiv:2401.01325; github.com/datamllab/LongLM, "Empirical Rule".
    """
    return max(1, 3 * (target - window) // (2 * trained - 3 * window) + 1)


def self_extend(geometry: Geometry) -> dict[str, Any]:
    """Choose a window of a quarter of the trained length: for Llama-2, 1024 of 4096; its authors name 512 to 1536."""
    trained, target = geometry.trained_length, geometry.target_length
    window = max(1, trained // 4)
    return {"group": well_trained_group(trained, target, window), "window": window} if window < trained else {}


def abf(geometry: Geometry) -> dict[str, Any]:
    """Choose the base 0.0424 L^1.628, rounded up to two digits; at least that of Llama 2 Long, 500,000.

    Xiong et al. 2023, arXiv:2309.16039; Xu et al. 2024, "Base of RoPE Bounds Context Length", arXiv:2405.14591.
    """
    bound = 0.0424 * geometry.target_length**1.628
    unit = 10.0 ** (math.floor(math.log10(bound)) - 1)
    return {"base": max(500_000.0, math.ceil(bound / unit) * unit)}


def alibi(geometry: Geometry) -> dict[str, Any]:
    """Divide the model's own slopes by the factor, if it has ALiBi (arXiv:2310.13017).

    In an encoder, half of the heads attend to each side, because |i − j| does not distinguish left from right.
    """
    if geometry.slopes is not None:
        own = {} if list(geometry.slopes) == code_slopes(geometry.heads) else {"slopes": list(geometry.slopes)}
        return {**own, "interpolate": geometry.factor}
    return {} if geometry.causal else {"bidirectional": "asymmetric"}


def learned_interp(geometry: Geometry) -> dict[str, Any]:
    """Repeat the table, as Longformer does (arXiv:2004.05150, section 5): distances between neighbours stay."""
    return {"mode": "tile"}


RULES: dict[str, Callable[[Geometry], dict[str, Any]]] = {
    "abf": abf,
    "alibi": alibi,
    "learned_interp": learned_interp,
    "self_extend": self_extend,
}
