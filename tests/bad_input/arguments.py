"""Bad arguments of evaluation, probing and fine-tuning from Python."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_posenc import errors
from hf_posenc.checks.tiny_models import VOCABULARY
from hf_posenc.eval import errors as measuring

from .row import NAN, Errors, Row, Scene

TRAIN, COUNT, KIND = errors.TrainingImpossible, measuring.TaskOptionOutOfRange, errors.WrongKind
NO_TEXT: Errors = (measuring.UnreadableDocuments, measuring.TextTooShort)
TEXT = " ".join(f"w{i * i % 80}" for i in range(900))


def tokenizer(count: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Words ``w0``, ``w1`` …"""
    words = {"<unk>": 0, "<end>": 1, **{f"w{i}": i + 2 for i in range(count - 2)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="<end>", bos_token="<end>")


def tuned(scene: Scene, **changes: Any) -> object:
    """Fine-tune a copy of the model for a step."""
    from hf_posenc.training import Training, finetune

    given = {
        "model": copy.deepcopy(scene.model), "tokenizer": tokenizer(), "texts": [TEXT], "out": scene.folder,
        "training": Training(length=16, steps=1), **changes,
    }  # fmt: skip
    first = [given.pop(name) for name in ("model", "tokenizer", "texts", "training")]
    return finetune(*first, **given)


def longer(scene: Scene, **settings: Any) -> object:
    """Fine-tune with other settings."""
    from hf_posenc.training import Training

    return tuned(scene, training=Training(**({"length": 16, "steps": 1} | settings)))


def poisoned(scene: Scene) -> Any:
    """A copy of the model, one number of which is none."""
    model = copy.deepcopy(scene.model)
    model.model.layers[1].mlp.up_proj.weight.data[3, 3] = NAN
    return model


def probed(scene: Scene, **changes: Any) -> object:
    """Probe the model."""
    from hf_posenc.insight.probe import probe

    given = {"tokenizer": tokenizer(), "text": scene.saved["words"], "length": 32, "samples": 1, "scored": 4, **changes}
    return probe(given.pop("model", scene.model), given.pop("tokenizer"), **given)


def measured(scene: Scene, **changes: Any) -> object:
    """Evaluate the model."""
    from hf_posenc.eval import evaluate

    given = {
        "tokenizer": tokenizer(), "text": scene.saved["words"], "lengths": [32], "samples": 1, "scored": 4,
        "tasks": ["posenc_token_nll"], **changes,
    }  # fmt: skip
    return evaluate(given.pop("model", scene.model), given.pop("tokenizer"), **given)


def compared(scene: Scene, **changes: Any) -> object:
    """Compare schemes on the model."""
    from hf_posenc.eval import compare

    given = {
        "tokenizer": tokenizer(), "text": scene.saved["words"], "lengths": [32], "samples": 1, "scored": 4,
        "tasks": ["posenc_token_nll"], "out": scene.folder / "results", **changes,
    }  # fmt: skip
    return compare(given.pop("model", scene.model), given.pop("schemes", "yarn"), **given)


def rows() -> list[Row]:
    """What would compute something else without a word, and what would fail after an hour."""
    unknown = errors.InvalidInput
    tuning: list[tuple[str, Errors, str, dict[str, Any]]] = [
        ("no model", errors.UnsupportedModel, "None", {"model": None}),
        ("vocabulary past the embeddings", unknown, "96 embeddings",
         {"tokenizer": tokenizer(500), "texts": ["w497 w1 " * 40]}),
        ("words it does not know", unknown, "<unk>", {"texts": ["some words " * 40]}),
        ("one text", KIND, "texts", {"texts": TEXT}),
        ("empty document", errors.LengthContradiction, "0 tokens", {"texts": [""]}),
        ("held-out too short", errors.LengthContradiction, "64", {"held_out": ["w1"]}),
        ("argument", TRAIN, "'learning_rat'", {"arguments": {"learning_rat": 1}}),
    ]  # fmt: skip
    measuring_rows = [
        row
        for what, act in (("probe", probed), ("evaluate", measured), ("compare", compared))
        for row in (
            Row(f"{what} samples", COUNT, "samples", partial(act, samples=1.5)),
            Row(f"{what} absent text", NO_TEXT, "absent.txt", partial(act, text="absent.txt")),
            Row(f"{what} NaN", errors.WeightsNotFinite, "up_proj", lambda s, a=act: a(s, model=poisoned(s))),
            Row(f"{what} tokenizer", KIND, "7", partial(act, tokenizer=7)),
        )
    ]
    return [
        *(
            Row(f"finetune {name}", error, key, partial(tuned, **changes), patch=("yarn", {"factor": 2}))
            for name, error, key, changes in tuning
        ),
        *measuring_rows,
        Row("finetune without a mask", TRAIN, "mask token", tuned, "bert"),
        Row("finetune past the reach", errors.LengthContradiction, "32", partial(longer, length=640)),
        Row("finetune rank", errors.NoMemory, "GiB", partial(longer, rank=2**31 - 1)),
        Row("finetune warmup", TRAIN, "warmup", partial(longer, warmup=1)),
        Row("task", errors.BadComparison, "'posenc_ppl'", partial(measured, tasks=["posenc_pl"])),
        Row("task outside", measuring.UntrustedTask, r"\.\./x", partial(measured, tasks=["../x"])),
        Row("compare into a file", errors.FolderUnusable, "file", lambda s: compared(s, out=s.saved["file"])),
        Row("keyword", errors.UnknownOption, "'wat'", partial(measured, wat=1)),
        Row("too long", errors.NoMemory, "GiB",
            partial(measured, lengths=[10**9], tasks=["posenc_passkey"], text=None)),
    ]  # fmt: skip
