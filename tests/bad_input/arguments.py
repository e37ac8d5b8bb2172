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

from .row import NAN, Act, Errors, Row, Scene

TRAIN, COUNT, KIND = errors.TrainingImpossible, measuring.TaskOptionOutOfRange, errors.WrongKind
NO_TEXT: Errors = (measuring.UnreadableDocuments, measuring.TextTooShort)
TEXT = " ".join(f"w{i * i % 80}" for i in range(900))
SETTINGS = {
    "length": 0, "steps": 1.5, "rank": "8", "seed": -1, "learning_rate": NAN, "warmup": 1, "packing": "joind",
    "bf16": "yes", "eval_lengths": (0,),
}  # fmt: skip


def tokenizer(count: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Words ``w0``, ``w1`` …"""
    words = {"<unk>": 0, "<end>": 1, **{f"w{i}": i + 2 for i in range(count - 2)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="<end>", bos_token="<end>")


def setting(name: str, value: Any) -> Act:
    """One setting of a fine-tuning run."""
    from hf_posenc.training import Training

    return lambda _: Training(**({"length": 16, "steps": 1} | {name: value}))


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


def with_file(content: bytes, name: str = "text.txt") -> Act:
    """Measure on a file of the user's own."""

    def act(scene: Scene) -> object:
        (scene.desk / name).write_bytes(content)
        return measured(scene, text=scene.desk / name)

    return act


def with_task(content: str) -> Act:
    """Measure a task of the user's own."""

    def act(scene: Scene) -> object:
        (scene.desk / "tasks").mkdir()
        (scene.desk / "tasks" / "mine.yaml").write_text(content, encoding="utf-8")
        return measured(scene, tasks=["mine"], include_path=scene.desk / "tasks", trust_tasks=True)

    return act


def rows() -> list[Row]:
    """All of them."""
    tuning: list[tuple[str, Errors, str, dict[str, Any]]] = [
        ("no model", errors.UnsupportedModel, "None", {"model": None}),
        ("vocabulary past the embeddings", errors.InvalidInput, "96 embeddings",
         {"tokenizer": tokenizer(500), "texts": ["w497 w1 " * 40]}),
        ("words it does not know", errors.InvalidInput, "<unk>", {"texts": ["some words " * 40]}),
        ("one text", KIND, "texts", {"texts": TEXT}),
        ("empty document", errors.LengthContradiction, "0 tokens", {"texts": [""]}),
        ("held-out too short", errors.LengthContradiction, "64", {"held_out": ["w1"]}),
        ("argument", errors.UnknownOption, "'learning_rate'", {"arguments": {"learning_rat": 1}}),
    ]  # fmt: skip
    measuring_rows = [
        row
        for what, act in (("probe", probed), ("evaluate", measured), ("compare", compared))
        for row in (
            *(Row(f"{what} samples {n!r}", COUNT, "samples", partial(act, samples=n)) for n in (0, 1.5, "x")),
            Row(f"{what} seed", COUNT, "seed", partial(act, seed=-1)),
            Row(f"{what} absent text", NO_TEXT, "absent.txt", partial(act, text="absent.txt")),
            Row(f"{what} NaN", errors.WeightsNotFinite, "up_proj", lambda s, a=act: a(s, model=poisoned(s))),
            Row(f"{what} tokenizer", KIND, "7", partial(act, tokenizer=7)),
            Row(f"{what} no model", (KIND, errors.UnsupportedModel), "None", partial(act, model=None)),
        )
    ]  # fmt: skip
    bad = errors.BadComparison
    return [
        *(Row(f"{name} {value!r}", TRAIN, name, setting(name, value)) for name, value in SETTINGS.items()),
        *(
            Row(f"finetune {name}", error, key, partial(tuned, **changes), patch=("yarn", {"factor": 2}))
            for name, error, key, changes in tuning
        ),
        *measuring_rows,
        Row("finetune without a mask", TRAIN, "mask token", tuned, "bert"),
        Row("finetune past the reach", errors.LengthContradiction, "32", partial(longer, length=640)),
        Row("finetune rank", errors.NoMemory, "GiB", partial(longer, rank=2**31 - 1)),
        *(Row(f"depths {value}", COUNT, "depths", partial(measured, depths=value)) for value in ([2], [NAN], [])),
        *(Row(f"schemes {value}", bad, "", partial(compared, schemes=value)) for value in (None, "", ["yarn", 7])),
        Row("task", bad, "'posenc_ppl'", partial(measured, tasks=["posenc_pl"])),
        Row("task outside", measuring.UntrustedTask, r"\.\./x", partial(measured, tasks=["../x"])),
        Row("compare into a file", errors.FolderUnusable, "file", lambda s: compared(s, out=s.saved["file"])),
        Row("keyword", errors.UnknownOption, "'wat'", partial(measured, wat=1)),
        Row("batch of 0", COUNT, "batch_size", partial(measured, batch_size=0)),
        Row("too long", errors.NoMemory, "GiB",
            partial(measured, lengths=[10**9], tasks=["posenc_passkey"], text=None)),
        Row("UTF-16", NO_TEXT, "utf-8", with_file("words ".encode("utf-16") * 200)),
        Row("empty text", NO_TEXT, "", with_file(b"")),
        Row("no JSON", NO_TEXT, "JSON", with_file(b"{\n", "d.jsonl")),
        Row("task file of broken YAML", bad, "mine.yaml", with_task("task: [\n")),
        Row("task file that includes itself", bad, "circle", with_task("include: mine.yaml\ntask: mine\n")),
    ]  # fmt: skip
