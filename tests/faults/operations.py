"""Everything this package writes: an operation puts one of two results into a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save
from transformers import LlamaConfig, LlamaForCausalLM

from hf_posenc import export_native, from_pretrained, patch_model
from hf_posenc.core.files.atomic import write_bytes, write_json
from hf_posenc.core.plotting.figures import save_figure
from hf_posenc.eval.evaluation import Evaluation
from hf_posenc.eval.report import exports, report
from hf_posenc.eval.report.figures import figure_files
from hf_posenc.eval.report.page import page_html
from hf_posenc.eval.report.plots import loss_plot
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.record import Record
from hf_posenc.eval.results.rows import Row
from hf_posenc.eval.results.store import Store
from hf_posenc.training.loss_curve import LossPoint
from hf_posenc.training.resume import WriteManifest, last_complete, start_run

TEXT = torch.arange(3, 23)[None]
OLD, NEW = 0, 1


@dataclass(frozen=True)
class Operation:
    """Writes result ``OLD`` or ``NEW`` into a folder; ``opens`` reads what is there.

    What is ``dear`` meets one error at each call, the others all of them.
    """

    name: str
    write: Callable[[Path, int], Any]
    opens: Callable[[Path], Any] = lambda folder: None
    dear: bool = False


def tiny_llama(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=16, bos_token_id=1, eos_token_id=2,
        )
    ).eval()  # fmt: skip


@lru_cache(maxsize=2)
def patched(which: int) -> Any:
    """Of the old and the new result, scheme and weights differ."""
    return patch_model(tiny_llama(which), ("yarn", "t5")[which], factor=2)


def loaded_logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return from_pretrained(folder)(TEXT).logits


@lru_cache(maxsize=2)
def adapted(which: int) -> Any:
    """The old base has position parameters that PEFT does not save, the new one has none."""
    peft = pytest.importorskip("peft")
    from hf_posenc.checkpoints.peft import get_peft_model

    model = patch_model(tiny_llama(0), ("t5", "yarn")[which], factor=2)
    torch.manual_seed(which)
    return get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))


def loaded_adapter_logits(folder: Path) -> torch.Tensor:
    from hf_posenc.checkpoints.peft import load_peft_adapter

    with torch.no_grad():
        return load_peft_adapter(tiny_llama(0), folder, patch="apply").eval()(TEXT).logits


RECORDS = [Record("k", "yarn", "posenc_ppl", 32, "done", "", [{"value": 1.5 + which}], 1.0, {}) for which in (OLD, NEW)]


def put(folder: Path, which: int) -> None:
    with Store(folder / "cells.sqlite") as store:
        store.put(RECORDS[which])


def stored(folder: Path) -> Any:
    with Store(folder / "cells.sqlite") as store:
        return store.get("k")


def rows(which: int) -> list[Row]:
    return [
        Row("tiny", scheme, task, length, None, metric, 1.0 + which, 0.1, 4)
        for scheme in ("unpatched", "yarn")
        for task, metrics in (("posenc_ppl", ("nll", "ppl")), ("posenc_passkey", ("acc",)))
        for metric in metrics
        for length in (16, 32)
    ]


def comparison(which: int) -> Comparison:
    about = {
        "model": "tiny", "model_scheme": None, "trained_length": 16, "lengths": [16, 32],
        "tasks": ["posenc_ppl", "posenc_passkey"],
        "schemes": [{"label": s, "scheme": None if s == "unpatched" else s, "options": {}, "needs_training": False}
                    for s in ("unpatched", "yarn")],
        "factor_per_length": False, "samples": 4, "scored": 8, "keys": 1, "depths": [0.5], "seed": which, "limit": None,
        "text": None, "versions": {"python": "3"}, "digests": {}, "command": "hf-posenc compare",
    }  # fmt: skip
    kept = [
        Record(f"{row.scheme}{row.task}{row.length}", row.scheme, row.task, row.length, "done", "", [row.to_dict()],
               1.0, {})
        for row in rows(which)
    ]  # fmt: skip
    return Comparison(about, kept)


@lru_cache(maxsize=2)
def page(which: int) -> str:
    return page_html(comparison(which))


@lru_cache(maxsize=2)
def figures(which: int) -> dict[str, bytes]:
    return figure_files(comparison(which))


def export_comparison(folder: Path, which: int) -> None:
    """The page and the figures are drawn once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exports, "page_html", lambda comparison: page(which))
        patch.setattr(exports, "figure_files", lambda comparison: figures(which))
        exports.write_exports(folder, comparison(which))


def demo_report(folder: Path, which: int) -> None:
    """Plots are replaced by stand-ins: drawing takes longer than all the rest."""
    about = {
        "model": "tiny", "trained_length": 16, "lengths": [16, 32], "depths": [0.5], "options": {}, "versions": {},
        "scored_tokens": 8, "samples": 4, "keys": 1, "fine_tune_steps": 2, "python": "3",
        "factor_per_length": False,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name in ("loss_plot", "passkey_plot", "overview_plot"):
            patch.setattr(report, name, lambda rows, trained, path, how: save_figure(Figure((1 + which, 1)), path))
        report.write_report(folder, rows(which), about)


def checkpoint(folder: Path, which: int) -> None:
    """A checkpoint of `Trainer`, whose own files are there, gets its manifest."""
    if which == OLD:
        for step in (1, 2):
            (folder / f"checkpoint-{step}").mkdir()
            (folder / f"checkpoint-{step}" / "model.safetensors").write_bytes(save({"w": torch.full((2,), 1.0 * step)}))
    state = SimpleNamespace(is_world_process_zero=True, global_step=which + 1)
    WriteManifest().on_save(SimpleNamespace(output_dir=str(folder)), state, None)


def finished(folder: Path, which: int) -> None:
    """What `finetune` leaves: the adapter and its curve."""
    from hf_posenc.training.run_folder import save_result as save_run

    model = adapted(which)
    trainer = SimpleNamespace(is_world_process_zero=lambda: True, save_model=lambda where: model.save_pretrained(where))
    save_run(trainer, folder, [LossPoint(1, 2.0 + which, {16: 2.0})])  # type: ignore[arg-type]


def probed(folder: Path, which: int) -> None:
    """With stand-ins for the plots."""
    from hf_posenc.cli.commands import probe as command
    from hf_posenc.insight.probe import plots

    with pytest.MonkeyPatch.context() as patch:
        for name in ("distance_plot", "heads_plot", "sink_plot", "loss_plot"):
            patch.setattr(plots, name, lambda probe, path: save_figure(Figure((1 + which, 1)), path))
        command.write(probe_of(which), folder)


@lru_cache(maxsize=2)
def probe_of(which: int) -> Any:
    from hf_posenc.insight.probe import probe

    return probe(tiny_llama(which), byte_tokenizer(), length=24, samples=1, rows=4, scored=4)


def byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(32)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    # Every word of a text is w0, which is not said to be the unknown one: such texts are refused.
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w1", eos_token="w2")


def drawn(folder: Path, which: int) -> None:
    """Two plots, drawn once."""
    from hf_posenc.insight.plots import save as saving

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(saving.FILES, ".svg", lambda computed: drawing(which, computed.plot.name))
        saving.save(taken(which), folder / "x.svg", title="t")


@lru_cache(maxsize=2)
def taken(which: int) -> list[Any]:
    from hf_posenc.insight.plots import compose
    from hf_posenc.insight.plots import save as saving
    from hf_posenc.insight.plots.catalogue import plot_of
    from hf_posenc.insight.plots.registry import View
    from hf_posenc.schemes.entry import entries_of

    order = compose.PlotRequest(entries_of("alibi" if which else "t5"), view=View(length=8))
    plots = map(plot_of, ("bias", "bias_curve"))
    return [saving.ComputedPlot(plot, [compose.sheets(plot, order)]) for plot in plots]


@lru_cache(maxsize=4)
def drawing(which: int, name: str) -> bytes:
    from hf_posenc.insight.plots import save as saving

    return next(saving.svg(one) for one in taken(which) if one.plot.name == name)


def run_settings(folder: Path, which: int) -> None:
    start_run(folder, {"steps": 1 + which}, resume=True)


def curve(folder: Path, which: int) -> None:
    from hf_posenc.eval.report.finetune_curve import curve_plot

    curve_plot([[LossPoint(1, 2.0, {16: 2.0 + which}), LossPoint(2, 2.0, {16: 1.0})]], 16, folder / "curve.png")


def config_only(folder: Path, which: int) -> None:
    patched(which).config.save_pretrained(folder)


def save_model(folder: Path, which: int) -> None:
    patched(which).save_pretrained(folder)


def save_shards(folder: Path, which: int) -> None:
    """The old result is one file, the new one shards of it."""
    patched(which).save_pretrained(folder, **({"max_shard_size": "8KB"} if which else {}))


def save_adapter(folder: Path, which: int) -> None:
    adapted(which).save_pretrained(str(folder))


def exported(folder: Path, which: int) -> None:
    export_native(patch_model(tiny_llama(which), "pi" if which else "yarn", factor=2), folder)


OPERATIONS = [
    Operation("write_bytes", lambda folder, which: write_bytes(folder / "deep" / "a", b"01"[which : which + 1])),
    Operation("write_json", lambda folder, which: write_json(folder / "a.json", {"which": which})),
    Operation("config", config_only),
    Operation("save_pretrained", save_model, loaded_logits, dear=True),
    Operation("save_pretrained in shards", save_shards, loaded_logits, dear=True),
    Operation(
        "save_peft_adapter",
        lambda folder, which: adapted(which).save_pretrained(str(folder)),
        loaded_adapter_logits,
        dear=True,
    ),
    Operation("export_native", exported, dear=True),
    Operation("compare: a cell", put, stored),
    Operation("compare: the exports", export_comparison),
    Operation("eval --out", lambda folder, which: Evaluation(rows(which), {"n": which}).save(folder / "r.json")),
    Operation("demo: the report", demo_report),
    Operation("finetune: claim of a folder", run_settings),
    Operation("finetune: manifest", checkpoint, last_complete),
    Operation("finetune: the result", finished, loaded_adapter_logits, dear=True),
    Operation("finetune: the curve", curve, dear=True),
    Operation("show --out", drawn, dear=True),
    Operation("probe --out", probed, dear=True),
    Operation("a plot", lambda folder, which: loss_plot(rows(which), 16, folder / "loss.png", "factor 2"), dear=True),
]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, and every empty folder, by name."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes() if file.is_file() else b""
        for file in folder.rglob("*")
        if file.is_file() or not any(file.iterdir())
    }
