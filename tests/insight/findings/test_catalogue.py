"""Every published finding says all that a reader needs, and its measurements are those of the evaluation."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hf_posenc import load_starter, patch_model
from hf_posenc.core.geometry import Geometry
from hf_posenc.eval.evaluation import evaluate
from hf_posenc.insight.findings import Finding, Job, all_findings, tuned
from hf_posenc.insight.findings import published as published_package
from hf_posenc.insight.findings.cached_windows import logits_of, model_of
from hf_posenc.insight.findings.rotation_parts import RestingPart, norm_shares
from hf_posenc.insight.findings.sweep import sweep
from hf_posenc.patching.state import base_model_of
from hf_posenc.starters.loading import starter_path

FINDINGS = list(all_findings().values())


def test_every_file_is_registered() -> None:
    folder = Path(published_package.__file__).parent
    files = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    assert files == set(all_findings())


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.name)
def test_finding_says_what_a_reader_needs(finding: Finding) -> None:
    for text in (finding.claim, finding.source, finding.against, finding.limits):
        assert len(text.split()) > 3 or text == finding.source
    assert finding.claim.endswith(".")
    assert finding.full.seeds
    assert finding.full.options.keys() <= finding.quick.options.keys()
    assert finding.quick != finding.full


def job(variant: object, points: tuple[float, ...], **options: object) -> Job:
    """A job on the bundled Llama."""
    return Job("v", variant, points, points, 0, options, "starter:llama", None, lambda share, doing: None)


def test_a_sweep_scores_what_evaluate_scores() -> None:
    options = {"scores": {"loss": ("posenc_ppl", "nll")}, "samples": 3, "scored": 16}
    (at, scores), *rest = sweep(job("yarn", (2.0,), **options))
    model, tokenizer = load_starter("llama")
    patch_model(model, "yarn", factor=2.0)
    row = next(r for r in evaluate(model, tokenizer, tasks=["posenc_ppl"], lengths=[512], samples=3, scored=16).rows)
    assert (at, rest) == (2.0, [])
    assert sum(score.value for score in scores["loss"]) / 3 == pytest.approx(row.value, rel=1e-5)


TUNED = [(one, variant) for one in FINDINGS if one.measure is tuned.tuned for variant in one.variants]


@pytest.mark.parametrize(("finding", "variant"), TUNED, ids=lambda of: of if isinstance(of, str) else of.name)
def test_a_tuned_variant_has_settings_that_training_takes(
    finding: Finding, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []

    def no_training(model: object, tokenizer: object, texts: object, training: object, **more: object) -> object:
        trained.append(training)
        return SimpleNamespace(model=model)

    monkeypatch.setattr(tuned, "finetune", no_training)
    model, tokenizer = load_starter("llama")
    for budget in (finding.full, finding.quick):
        settings = job(finding.variants[variant], finding.points, **budget.options)
        assert tuned.trained_model(copy.deepcopy(model), tokenizer, settings) is not None
    recipe = {"recipe": None, **finding.variants[variant]}["recipe"]
    assert len(trained) == (0 if recipe is None else 2)


def test_a_resting_part_keeps_the_other_pairs() -> None:
    model, _ = load_starter("llama")
    base, adapter = base_model_of(model)
    geometry: Geometry = adapter.geometry(base.config, trained_length=256, target_length=256)
    pairs = geometry.head_dim // 2
    whole = [10_000.0 ** (-m / pairs) for m in range(pairs)]
    found = RestingPart(geometry, part=1, parts=4).frequencies()
    quarter = range(pairs // 4, pairs // 2)
    assert found == pytest.approx([0.0 if m in quarter else w for m, w in enumerate(whole)])


def test_shares_of_norms_sum_to_one() -> None:
    model, _ = load_starter("llama")
    shares = norm_shares(model, torch.arange(40).view(2, 20), 4)
    assert shares.shape == (2, 4)
    assert shares.sum(dim=1).tolist() == pytest.approx([1.0, 1.0])


def test_cached_dynamic_ntk_of_transformers_is_not_that_of_one_pass() -> None:
    ids = torch.randint(0, 1500, (1, 512), generator=torch.Generator().manual_seed(0))
    name = str(starter_path("llama"))
    gaps = {}
    for patched in (False, True):
        model = model_of(name, patched, 2.0)
        gaps[patched] = (logits_of(model, ids, 64) - logits_of(model, ids, None)).abs().max()
    assert gaps[True] < 1e-3 < 0.1 < gaps[False]
