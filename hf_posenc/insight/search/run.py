"""Search the scheme and options that extend a model best, within a time, and judge the choice on held-out text.

first look   every scheme and composition with its defaults, on two windows       measures the speed as well
plan         how many further arms, on how many windows, the budget pays for      written down, and followed
halving      the better third of the arms on ever more windows
choice       the best arm, if clearly better than the best default                made without the held-out text
held-out     the choice, all defaults and the unpatched model on the held-out text
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_posenc.checkpoints.model_digest import model_digest
from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.core.lengths import tokens
from hf_posenc.core.plotting.figures import require_matplotlib
from hf_posenc.core.progress import ProgressCallback
from hf_posenc.errors import BadComparison, CheckpointMismatch, LengthContradiction
from hf_posenc.eval.comparison.fitting import Fitting
from hf_posenc.eval.comparison.identity import package_digest, tokenizer_digest, versions
from hf_posenc.eval.comparison.one_model import MeasuredModel
from hf_posenc.eval.comparison.run import STORE
from hf_posenc.eval.lm.load import language_model
from hf_posenc.eval.lm.native_length import trained_length_of_lm
from hf_posenc.eval.quiet import suppress_output
from hf_posenc.eval.results.record import key_of
from hf_posenc.eval.results.store import Store
from hf_posenc.eval.tasks.parse import seed_of
from hf_posenc.eval.texts.measured_text import TextToMeasure
from hf_posenc.eval.validate import folder_of_results
from hf_posenc.insight.search.arms import defaults_of, drawn, families
from hf_posenc.insight.search.durations import seconds_of
from hf_posenc.insight.search.files import write_files
from hf_posenc.insight.search.halving import Halving, best_of, chosen
from hf_posenc.insight.search.plan import SearchPlan
from hf_posenc.insight.search.result import SearchResult
from hf_posenc.insight.search.steps import LAST, Search
from hf_posenc.insight.search.trial import held_out_lines, trials_of
from hf_posenc.insight.search.two_texts import room_of_both, two_texts
from hf_posenc.insight.search.windows_loss import SEEDS, WindowLoss
from hf_posenc.patching.model_geometry import model_geometry
from hf_posenc.schemes.entry import Entry

PLANS = "plans"
"""Folder of plans in the folder of results: one file for every model, text, target, budget and seed."""
SCORED = 512
"""Most tokens that are scored at the end of a window, which is a quarter of it where that is less."""


def search(
    model: Any,
    target_length: int | str,
    *,
    budget: str | float = "10m",
    out: str | Path = "results/search",
    tokenizer: Any = None,
    text: TextToMeasure = None,
    eval_text: TextToMeasure = None,
    text_field: str = "text",
    document_separator: str | None = None,
    all_keys: bool = False,
    seed: int = 0,
    name: str | None = None,
    command: str | None = None,
    compare: Sequence[str] = (),
    progress: ProgressCallback | None = None,
    **model_args: Any,
) -> SearchResult:
    """Search the zero-shot scheme and options with the lowest loss of a model at a length.

    Schemes and options are tried on windows of ``text`` by successive halving; the choice is made there. It is then
    compared with the defaults of every scheme and with the unpatched model on a held-out text, which has no part in it.

    Finished cells and the plan are kept in the folder: after an interruption the same call goes on, and repeated it
    measures nothing. Two runs with one seed choose the same where their plans agree; the plan follows from the measured
    speed, and the clock cuts it short only where the machine has become much slower since.

    Args:
        model: a live model, unpatched, or the name of a model, a PEFT adapter or a bundled one (``starter:llama``).
        target_length: tokens; also ``"128k"``, where k is 1024.
        budget: wall-clock time, such as ``"10m"``, ``"1h30m"``, or seconds.
        out: folder of ``search.json``, ``.csv``, ``.md`` and ``.png``, the finished cells and the plan.
        tokenizer: of a live model.
        text: to choose on, as in `hf_posenc.eval.compare`; by default held-out modules of the standard library.
        eval_text: to judge by, of which no document may be in ``text``; by default the last third of ``text``.
        text_field, document_separator: as in `hf_posenc.eval.compare`, for both texts.
        all_keys: leave out schemes that hide or evict keys: the loss of the last tokens does not show what is lost.
        seed: of the places of windows and the order of arms.
        name: name of the model in reports.
        command: command printed in reports to repeat the search.
        compare: options that the printed ``hf-posenc compare`` has to load this model, and to read the text that
            the choice is judged on.
        progress: called with the completed fraction and a description of the current step.
        **model_args: further arguments of `hf_posenc.eval.lm.models.PosEncLM`, such as ``dtype`` and ``device``.

    Raises:
        BudgetTooSmall: the budget does not pay for the smallest search at this target on this machine.
        TextTooShort: a text has no room for the windows.
        LengthContradiction: the target is not beyond the trained length.
        BadComparison: no zero-shot scheme is defined for the model, or the texts share passages.
        CheckpointMismatch: the plan of an earlier run is damaged.
        PosEncError: an argument is invalid, or the folder cannot be used.
    """
    started, seconds, report = time.monotonic(), seconds_of(budget), progress or (lambda done, doing: None)
    require_matplotlib()
    target, folder, seed = tokens(target_length), folder_of_results(out), seed_of(seed)
    report(0.0, "loading the model")
    given = MeasuredModel(model, name or "", tokenizer, model_args)
    with suppress_output(True):
        lm = language_model(model, tokenizer, **model_args)
    trained = trained_length_of_lm(lm)
    check_target(target, trained)
    found = families_of(lm, given.shown_name, all_keys)
    scored = max(1, min(SCORED, target // 4))
    own, held_out, which = two_texts(text, eval_text, lm.tokenizer, field=text_field, separator=document_separator)
    identity = {
        "versions": versions(), "package": package_digest(), "model": model_digest(lm.model),
        "tokenizer": tokenizer_digest(lm.tokenizer),
    }  # fmt: skip
    settings = {
        **identity, "text": own.digest, "held_out": held_out.digest, "target": target, "scored": scored,
        "budget": seconds, "seed": seed, "all_keys": all_keys,
    }  # fmt: skip
    if not plan_file(folder, settings).exists():  # to tokenise two books takes longer than all else of a repetition
        room_of_both(own, held_out, lm.tokenizer, target, scored)
    with Store(folder / STORE) as store:
        (folder / PLANS).mkdir(exist_ok=True)  # tells an interrupted search from an interrupted comparison
        measure = WindowLoss(lm, Fitting.on(lm, seed), store, identity, target, scored, seed, dict(model_args))
        under_way = Search(measure, own, held_out, target, trained, seconds, seed, started, report)
        about = {
            "model": given.shown_name, "target_length": target, "trained_length": trained, "scored": scored,
            "text": own.label, "eval_text": held_out.label, "held_out": which, "all_keys": all_keys, "seed": seed,
            "versions": identity["versions"], "command": command, "compare": list(compare), "task": measure.task,
            "held_out_seed": SEEDS * seed + LAST,
        }  # fmt: skip
        result = searched(under_way, found, folder, settings, about)
    report(1.0, "done")
    return result


def searched(
    search: Search, found: Sequence[Entry], folder: Path, settings: Mapping[str, Any], about: dict[str, Any]
) -> SearchResult:
    """Take all steps of a search, and write its files."""
    measure = search.measure
    known = {arm.label: arm for arm in (*found, *drawn(found, search.factor, search.trained, search.seed))}
    plan = plan_of(folder, settings, search, found, known)
    arms = [known[label] for label in plan.arms]
    halving = search.halved(arms, plan)
    defaults = defaults_of(arms)
    choice = known[chosen(halving, defaults)]
    scores = search.judged(choice, arms, halving, plan)
    seconds = plan.setup + measure.spent * plan.overhead
    result = SearchResult(
        about
        | {
            "plan": plan.to_dict(),
            "seconds": seconds,
            "cut": halving.cut,
            "unmeasured": unmeasured_rung(halving, measure.reasons),
        },
        trials_of([*arms, *found], halving, measure.reasons, measure.seconds),
        measure.fitting.fit(choice, search.target),
        best_of(halving.survivors[-1], defaults) or "",
        tuple(held_out_lines(choice.label, scores, measure.reasons)),
    )
    write_files(folder, result, halving)
    return result


def unmeasured_rung(halving: Halving, reasons: Mapping[str, str]) -> str:
    """Which rung no arm could be measured on, and why; empty where there is none."""
    if halving.unmeasured is None:
        return ""
    why = reasons.get(halving.survivors[-1][0], "")
    return f"No arm could be measured on rung {halving.unmeasured + 1}, and the choice rests on those before it. {why}"


def check_target(target: int, trained: int) -> None:
    """Refuse a target that the model reaches as it is.

    Raises:
        LengthContradiction: it is not beyond the trained length.
    """
    if target <= trained:
        raise LengthContradiction(
            f"The model was trained on {trained:,} tokens, and the target is {target:,}: there is nothing to extend. "
            "Pass a longer --target-length."
        )


def families_of(lm: Any, name: str, all_keys: bool) -> list[Entry]:
    """The schemes and compositions to search among.

    Raises:
        BadComparison: there is none.
    """
    found = families(model_geometry(lm.model), all_keys=all_keys)
    if not found:
        raise BadComparison(
            f"No zero-shot scheme is defined for {name}. `hf-posenc advise` names those that need training."
        )
    return found


def read_plan(path: Path) -> SearchPlan:
    """The plan in a file of an earlier run.

    Raises:
        CheckpointMismatch: the file is damaged.
    """
    try:
        return SearchPlan.from_dict(read_object(path)["plan"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointMismatch(
            f"The plan in {path} cannot be read: {type(error).__name__}: {error}. Restore the file, or delete it to "
            "plan anew; finished cells are kept."
        ) from error


def plan_file(folder: Path, settings: Mapping[str, Any]) -> Path:
    """Where the plan of a search with these settings is written down."""
    return folder / PLANS / f"{key_of(settings)[:16]}.json"


def plan_of(
    folder: Path, settings: Mapping[str, Any], search: Search, found: Sequence[Entry], known: Collection[str]
) -> SearchPlan:
    """The plan of a search: as an earlier run wrote it down, if its arms are all ``known``, or made now.

    Raises:
        CheckpointMismatch: the file of the plan is damaged.
    """
    path = plan_file(folder, settings)
    kept = read_plan(path) if path.exists() else None
    if kept is not None and not set(kept.arms) <= set(known):
        kept = None
    plan = search.first_look(found, kept)
    write_json(path, {"settings": settings, "plan": plan.to_dict()})
    return plan
