"""Sentences of a report: what is significant, caveats about the numbers, and how they were measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hf_posenc.eval.catalogue import JOINT, SETTINGS, read_by
from hf_posenc.eval.report.phrases import metric_name
from hf_posenc.eval.results.comparison import SHARES, Comparison, interval, rows_by_cell
from hf_posenc.eval.results.store import Record

FLOOR = 0.05
"""Share of right answers that an unpatched model must significantly exceed within its trained length."""


def remarks(comparison: Comparison) -> list[str]:
    """List the caveats about a comparison: refusals, failures, schemes that need training, and others."""
    return [
        *not_measured(comparison),
        *without_effect(comparison),
        *needing_training(comparison),
        *without_reference(comparison),
        *dict.fromkeys(remark for record in comparison.records for remark in record.remarks),
        *options_chosen(comparison),
        *tasks_beyond_the_model(comparison),
        *carried_schemes(comparison.about),
    ]


def not_measured(comparison: Comparison) -> Iterator[str]:
    """Say which schemes were refused or failed, where and why; schemes with equal place and reason share a sentence."""
    for state in ("refused", "failed"):
        groups: dict[tuple[str, str], list[Record]] = {}
        for record in comparison.with_state(state):
            groups.setdefault((record.scheme, record.reason), []).append(record)
        sharing: dict[tuple[str, str], list[str]] = {}
        for (label, reason), records in groups.items():
            everywhere = len(records) == sum(r.scheme == label for r in comparison.records)
            sharing.setdefault(("" if everywhere else f" at {places(records)}", reason), []).append(label)
        for (where, reason), labels in sharing.items():
            what = state.capitalize() if len(labels) == len(comparison.labels) else f"{', '.join(labels)}: {state}"
            yield f"{what}{where}. {reason}"


def places(records: Sequence[Record]) -> str:
    """List the tasks of cells and their lengths: ``posenc_passkey 512; posenc_ppl 512, 1024``."""
    lengths: dict[str, set[int]] = {}
    for record in records:
        lengths.setdefault(record.task, set()).update([record.length] if record.length else [])
    return "; ".join(f"{task} {listed(lengths[task])}".rstrip() for task in sorted(lengths))


def listed(lengths: Iterable[int]) -> str:
    """Lengths in order: ``256, 512``."""
    return ", ".join(map(str, sorted(lengths)))


def without_effect(comparison: Comparison) -> Iterator[str]:
    """Say at which measured lengths a scheme changes nothing, and why if no length exceeds the trained one."""
    about = comparison.about
    reach = about.get("longest") or about["lengths"][-1]
    sharing: dict[str, list[str]] = {}
    reasons: list[str] = []
    for scheme in about["schemes"]:
        measured = {record.length or about["lengths"][-1] for record in comparison.done(scheme["label"])}
        if unchanged := measured.intersection(scheme.get("without_effect", ())):
            sharing.setdefault(listed(unchanged), []).append(scheme["label"])
            if reach <= (trained := comparison.trained_length_of(scheme["label"])):
                reasons.append(
                    f"Schemes are patched for {reach:,} tokens, and the model was trained on {trained:,}: their factor "
                    "is 1. Compare longer lengths, set longest, or give a factor, as in yarn:factor=4."
                )
    for lengths, labels in sharing.items():
        yield f"{', '.join(labels)}: no effect at {lengths} tokens; numbers are those of the model without a scheme."
    yield from dict.fromkeys(reasons)


def needing_training(comparison: Comparison) -> Iterator[str]:
    """Say which measured schemes need training."""
    measured = {record.scheme for record in comparison.with_state("done")}
    labels = [s["label"] for s in comparison.about["schemes"] if s["needs_training"] and s["label"] in measured]
    if labels:
        need, them = ("needs", "it") if len(labels) == 1 else ("need", "them")
        yield f"{', '.join(labels)} {need} training, and these weights were not trained with {them}."


def without_reference(comparison: Comparison) -> Iterator[str]:
    """Say for which tasks nothing can be compared with the reference, if one was chosen."""
    reference = comparison.about.get("against")
    paired = {difference.task for difference in comparison.differences}
    for task in comparison.tasks():
        if reference is not None and task not in paired:
            yield (
                f"{task}: nothing is compared with {reference}, which has no number there that is a mean over "
                "documents."
            )


def options_chosen(comparison: Comparison) -> Iterator[str]:
    """Say which options the comparison chose, on which text, and which schemes kept theirs."""
    tuned, schemes = comparison.about.get("tuned"), comparison.about["schemes"]
    how = f"for the lowest loss on {names_of(tuned['text'])}" if tuned else "by the comparison"
    for scheme in schemes:
        if by_length := scheme.get("chosen"):
            options = next(iter(by_length.values()))  # the same at every length
            chosen = "; ".join(f"{name} {option_text(value)}" for name, value in options.items())
            yield f"{scheme['label']}: options chosen {how}, {chosen}."
    kept = [scheme["label"] for scheme in schemes if scheme["scheme"] and not scheme.get("chosen")]
    if tuned and kept:
        yield f"{', '.join(kept)}: no other options that were tried have a lower loss on {names_of(tuned['text'])}."


def carried_schemes(about: Mapping[str, Any]) -> Iterator[str]:
    """Say which checkpoints carry a scheme, which then serves as the baseline."""
    for model in about.get("models") or [{"name": "The checkpoint", "scheme": about["model_scheme"]}]:
        if own := model["scheme"]:
            yield f"{model['name']} carries {own}, its baseline. Other schemes replace {own} on the same weights."


def tasks_beyond_the_model(comparison: Comparison) -> Iterator[str]:
    """Say which retrieval tasks an unpatched model fails at its longest measured length within the trained one."""
    for task in comparison.tasks():
        metric = comparison.metrics(task)[0]
        rows = rows_by_cell(comparison.rows, task, metric) if metric in SHARES else {}
        for label in filter(None, dict.fromkeys(map(comparison.baseline_of, comparison.labels))):
            trained = comparison.trained_length_of(label)
            within = [row for (name, n), row in rows.items() if name == label and n is not None and n <= trained]
            if not within:
                continue
            row = within[-1]  # lengths are in ascending order
            low, high = interval(row) or (row.value, row.value)
            if low <= FLOOR:
                yield (
                    f"{task}: {label} has {100 * row.value:.0f} % {metric_name(metric)} at {row.length:,} tokens (95 % "
                    f"interval {100 * low:.0f} to {100 * high:.0f} %), not significantly above {100 * FLOOR:g} %. A "
                    "task that it cannot do there tells no schemes apart."
                )


def method(about: Mapping[str, Any]) -> list[str]:
    """List sentences on how the numbers were measured."""
    longest = about.get("longest") or about["lengths"][-1]
    patched = (
        f"Every scheme is patched once, for {longest:,} tokens, and measured at all lengths with that factor, unless "
        "it has a factor of its own."
    )
    sentences = [
        f"Model: {about['model']}. {trained_lengths(about)} {patched}",
        *text_and_settings(about, longest),
        "± is one standard error over documents, clustered where several are windows of one; bands are 95 % confidence "
        "intervals (Student's t; Wilson where all documents agree). All schemes are measured on the same documents, so "
        "differences between schemes are more certain than the bands suggest: --against LABEL pairs them.",
        f"Seed {about['seed']}. Tasks: {', '.join(about['tasks'])}.",
    ]
    sentences += [
        f"{task} scores each text once for all lengths, with the scheme patched for the longest."
        for task in about["tasks"]
        if task in JOINT
    ]
    if about["limit"] is not None:
        sentences.append(f"Limited to {about['limit']} documents per length: a quick look, not a result.")
    return sentences


def text_and_settings(about: Mapping[str, Any], longest: int) -> Iterator[str]:
    """Describe the text that the tasks read, and the settings."""
    tasks = about["tasks"]
    if read_by("text", tasks):
        text = names_of(about["text"] or f"held-out modules of the library of Python {about['versions']['python']}")
        yield f"Text: {text}."
    if read_by("scored", tasks):
        yield (
            f"Windows of {longest:,} tokens stand at random places in all parts of the text; the scored tokens at "
            "their end are the same at every length and for every scheme."
        )
    values: dict[str, Any] = {**about, "depths": [f"{100 * depth:g} %" for depth in about["depths"]]}
    for name in SETTINGS:
        if reading := read_by(name, tasks):
            yield f"{name} {option_text(values[name])}: {', '.join(reading)}."


def names_of(text: str | Sequence[str] | None) -> str:
    """Names of a text, or of several."""
    return text if isinstance(text, str) else ", ".join(text or ("the standard library",))


def option_text(value: Any) -> str:
    """Format the value of an option: ``2`` for 2.0."""
    if isinstance(value, list):
        return ", ".join(map(option_text, value))
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def trained_lengths(about: Mapping[str, Any]) -> str:
    """Describe the trained lengths of the models."""
    lengths = {model["name"]: model["trained_length"] for model in about.get("models", ())}
    if len(lengths) < 2:
        return (
            f"The model's trained length (pre-training context length) is {about['trained_length']:,} tokens; all "
            "schemes use the same weights."
        )
    named = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
    shortest = "" if len(set(lengths.values())) == 1 else " Multiples are of the shortest."
    return f"Trained lengths (pre-training context lengths) in tokens: {named}.{shortest}"


def verdict(comparison: Comparison) -> str:
    """Sentence on significant differences from a baseline, one for each model; empty without a baseline.

    The baseline is the chosen reference; without one, it is the first unpatched line of each model. The first metric of
    each task is judged, with the p-values of the marks.
    """
    against = comparison.about.get("against")
    if against is not None:
        return verdict_from(comparison, against, comparison.labels)
    lines: dict[str, list[str]] = {}
    for label in comparison.labels:
        if (baseline := comparison.baseline_of(label)) is not None:
            lines.setdefault(baseline, []).append(label)
    return " ".join(filter(None, (verdict_from(comparison, *one) for one in lines.items())))


def verdict_from(comparison: Comparison, baseline: str, labels: Sequence[str]) -> str:
    """Sentence that compares the lines ``labels`` with ``baseline``; empty without another line."""
    length = max(comparison.about["lengths"])
    differences = [
        one for one in comparison.differences_from(baseline) if one.length == length and one.scheme in labels
    ]
    parts = []
    for task in comparison.tasks():
        metric = next(iter(comparison.metrics(task)), None)
        of_task = [one for one in differences if (one.task, one.metric) == (task, metric)]
        lines = {
            kind: ", ".join(one.scheme for one in of_task if one.verdict == kind)
            for kind in ("better", "worse", "different")
        }
        sure = " and ".join(f"{names} significantly {kind}" for kind, names in lines.items() if names)
        if metric is not None and of_task:
            parts.append(f"{task} ({metric_name(metric)}): {sure or 'no difference is significant'}")
    return f"Against {baseline} at {length:,} tokens: {'; '.join(parts)}." if parts else ""
