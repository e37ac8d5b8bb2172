"""Rows, masks, schedules and curves, small enough to be checked by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from hf_posenc.checkpoints.model_name import MANIFEST, checkpoint_folders, file_sizes, last_complete
from hf_posenc.errors import LengthContradiction
from hf_posenc.training.corpus import Corpus
from hf_posenc.training.dataset import IGNORED_LABEL, PackedRows, held_out_windows
from hf_posenc.training.length_trainer import LabellingCollator, masked_loss
from hf_posenc.training.loss_curve import LossPoint

from .test_finetune import tokenizer  # noqa: F401 (a fixture)


def corpus_of(documents: Sequence[torch.Tensor]) -> Corpus:
    """A corpus in memory, of documents ``[token]``."""
    sizes = torch.tensor([0, *map(len, documents)])
    tokens = torch.cat(list(documents)) if documents else torch.empty(0, dtype=torch.long)
    return Corpus(tokens, sizes.cumsum(0)[:-1], int(tokens.max()) if len(tokens) else 0)


def test_less_than_one_row_is_refused() -> None:
    for corpus in (corpus_of([torch.arange(3)]), corpus_of([])):
        with pytest.raises(LengthContradiction, match="less than one row of 4"):
            PackedRows(corpus, 4)


def test_windows_of_every_length_end_alike() -> None:
    tokens = torch.arange(100)
    found = held_out_windows(corpus_of([tokens[:50], tokens[50:]]), [8, 32], count=3)
    assert list(found) == ["8", "32"]
    for length, windows in found.items():
        assert len(windows) == 3
        for number, end in enumerate((32, 66, 100)):  # evenly, the first and the last included
            row, size = windows[number], int(length)
            assert row["input_ids"].tolist() == list(range(end - size, end))
            assert row["labels"].tolist() == [IGNORED_LABEL] * (size - 4) + list(
                range(end - 4, end)
            )  # half of the shortest
    assert (
        held_out_windows(corpus_of([torch.arange(2000)]), [512, 1024], count=1)["512"][0]["labels"] != IGNORED_LABEL
    ).sum() == 128
    (only,) = (windows[0] for windows in held_out_windows(corpus_of([tokens]), [100], count=1).values())
    assert torch.equal(only["input_ids"], tokens)  # no more text than is measured
    with pytest.raises(LengthContradiction, match="101"):
        held_out_windows(corpus_of([tokens]), [8, 101], count=1)


class State:
    def __init__(self, epoch: float | None) -> None:
        self.epoch = epoch


def test_masks_depend_on_seed_epoch_and_row_alone(tokenizer) -> None:  # noqa: F811
    rows = [{"input_ids": torch.arange(4, 24).roll(n)} for n in range(3)]

    def drawn(seed: int, epoch: float | None, some: list[Any]) -> list[list[int]]:
        collate = LabellingCollator(tokenizer, seed, causal=False)
        collate.on_epoch_begin(None, State(epoch), None)
        return collate(some)["labels"].tolist()

    first = drawn(0, 0.0, rows)
    assert drawn(0, None, rows) == first
    assert drawn(0, 0.0, rows[::-1]) == first[::-1]  # whatever it is batched with
    assert drawn(0, 0.0, rows[:1]) == first[:1]
    assert drawn(0, 1.0, rows) != first
    assert drawn(1, 0.0, rows) != first
    assert drawn(0, 1.0, rows) != drawn(1, 0.0, rows)
    assert first[0] != first[1]
    labelled = LabellingCollator(tokenizer, 0, causal=True)([{"input_ids": torch.arange(4)}] * 2)
    assert labelled["labels"].tolist() == [[0, 1, 2, 3]] * 2  # the model shifts them
    padded = LabellingCollator(tokenizer, 0, causal=True)(
        [{"input_ids": torch.arange(4), "attention_mask": torch.tensor([1, 1, 1, 0])}]
    )
    assert padded["labels"].tolist() == [[0, 1, 2, IGNORED_LABEL]]
    whole = torch.tensor(drawn(0, 0.0, [{"input_ids": torch.arange(5000) % 28 + 4}]))
    assert (whole != IGNORED_LABEL).double().mean() == pytest.approx(0.15, abs=0.02)


def test_masked_loss_is_per_hidden_token_of_the_whole_step() -> None:
    class Outputs:
        logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))

    labels = torch.tensor([[1, IGNORED_LABEL, 2], [IGNORED_LABEL, IGNORED_LABEL, 6]])
    each = [-Outputs.logits[i, j].double().log_softmax(-1)[labels[i, j]].item() for i, j in ((0, 0), (0, 2), (1, 2))]
    assert masked_loss(Outputs, labels).item() == pytest.approx(sum(each) / 3, rel=1e-5)
    assert masked_loss(Outputs, labels, 12).item() == pytest.approx(sum(each) / 12, rel=1e-5)
    assert masked_loss(Outputs, labels, torch.tensor(12)).item() == pytest.approx(sum(each) / 12, rel=1e-5)
    half = Outputs()
    half.logits = Outputs.logits.bfloat16()
    exact = functional.cross_entropy(half.logits.double().flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL)
    assert masked_loss(half, labels).item() == pytest.approx(exact.item(), rel=1e-5)  # not in bfloat16


def test_lengths_are_compared_window_by_window() -> None:
    stats = pytest.importorskip("scipy.stats", reason="comes with lm-eval")
    rng = np.random.default_rng(0)
    shorter = rng.normal(3.0, 1.0, 40)  # windows differ much more than lengths do
    longer = shorter + rng.normal(-0.05, 0.02, 40)
    point = LossPoint(5, None, {16: shorter.mean(), 64: longer.mean()}, {16: shorter.tolist(), 64: longer.tolist()})
    mean, half = point.difference(64, 16)
    low, high = stats.ttest_rel(longer, shorter).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-2)  # Student's t is within 1 %
    assert half < 0.02 < stats.ttest_ind(longer, shorter).confidence_interval(0.95).high  # unpaired: undecided
    assert LossPoint(5, None, {16: 3.0, 64: 2.9}).difference(64, 16) is None


@pytest.fixture
def run(tmp_path) -> Iterator[Any]:
    """A folder with whole checkpoints at 2, 10 and 9."""
    for step in (2, 10, 9):
        folder = tmp_path / f"checkpoint-{step}"
        (folder / "deep").mkdir(parents=True)
        (folder / "weights").write_bytes(b"w" * step)
        (folder / "deep" / "state").write_bytes(b"s")
        (folder / MANIFEST).write_text(json.dumps(file_sizes(folder)))
    (tmp_path / "checkpoint-best").mkdir()
    return tmp_path


def test_the_newest_whole_checkpoint_is_taken(run) -> None:
    assert [p.name for p in checkpoint_folders(run)] == ["checkpoint-2", "checkpoint-9", "checkpoint-10"]
    assert file_sizes(run / "checkpoint-9") == {"weights": 9, "deep/state": 1}
    assert last_complete(run) == str(run / "checkpoint-10")
    (run / "checkpoint-10" / "weights").write_bytes(b"short")
    assert last_complete(run) == str(run / "checkpoint-9")
    (run / "checkpoint-9" / "deep" / "state").unlink()
    assert last_complete(run) == str(run / "checkpoint-2")
    (run / "checkpoint-2" / MANIFEST).unlink()
    assert last_complete(run) is None
