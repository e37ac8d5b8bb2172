"""Bad arguments of evaluation, insight and fine-tuning from Python: lengths, counts, seeds, rates, texts, tasks,
folders.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_posenc import errors
from hf_posenc.checks.tiny_models import VOCABULARY
from hf_posenc.eval import errors as measuring

from .row import INF, NAN, Errors, Row, Scene

TRAIN, COUNT, KIND = errors.TrainingImpossible, measuring.TaskOptionOutOfRange, errors.WrongKind
UNREADABLE = measuring.UnreadableDocuments
TEXT = " ".join(f"w{i * i % 80}" for i in range(900))

SETTINGS: list[tuple[str, Any]] = [
    *[("length", value) for value in (0, "16", 16.0, True, None, NAN, 10**400)],
    *[("steps", value) for value in (0, 2**31, None)],
    *[("seed", value) for value in (-1, "0", 2**32)],
    *[("learning_rate", value) for value in (NAN, INF, 0, "1e-3", True, 1e300)],
    *[("warmup", value) for value in (1, -0.1, NAN, None)],
    *[("packing", value) for value in ("joind", None, ["joined"])],
    *[("bf16", value) for value in ("yes", None, 1)],
    *[("eval_lengths", value) for value in (5, "256", None, ("a",), (0,), (1.5,))],
    *[(name, 0) for name in ("batch", "accumulate", "rank", "save_every", "eval_every", "eval_windows")],
]
NO_COUNTS: list[Any] = [0, -1, "x", NAN, 1.5, True, 2**31, 10**400, [1, 2], b"x"]
NO_SEEDS: list[Any] = [-1, "x", None, 1.5, NAN, 2**32, True]
NO_TEXTS: list[tuple[str, Errors, str, Any]] = [
    ("absent", UNREADABLE, "'absent.txt' cannot be read.+No such file", "absent.txt"),
    ("folder without texts", UNREADABLE, "files.+parquet", "."),
    ("no path", KIND, "got 7", 7),
    ("NUL in the name", UNREADABLE, r"a\\x00b.+null", "a\0b"),
    ("5,000 letters", UNREADABLE, "too long", "x" * 5000),
    ("empty", measuring.TextTooShort, "got 0|has 0 tokens", ""),
    ("white space", measuring.TextTooShort, "white space", " \n\t" * 200),
    ("UTF-16", UNREADABLE, "utf-8.+convert", "words ".encode("utf-16") * 200),
    ("Latin-1", UNREADABLE, "utf-8.+convert", "é ".encode("latin-1") * 200),
]


def tokenizer(count: int = VOCABULARY, **special: Any) -> PreTrainedTokenizerFast:
    """Words ``w0``, ``w1`` …"""
    words = {"<unk>": 0, "<end>": 1, **{f"w{i}": i + 2 for i in range(count - 2)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", **({"eos_token": "<end>", "bos_token": "<end>"} | special)
    )


def tuned(scene: Scene, **changes: Any) -> object:
    """Fine-tune a copy of the model for a step."""
    from hf_posenc.training import Training, finetune

    given = {
        "model": copy.deepcopy(scene.model), "tokenizer": tokenizer(), "texts": [TEXT], "out": scene.folder,
        "training": Training(length=16, steps=1), **changes,
    }  # fmt: skip
    first = [given.pop(name) for name in ("model", "tokenizer", "texts", "training")]
    return finetune(*first, **given)


def poisoned(scene: Scene) -> Any:
    """A copy of the model, one number of which is none."""
    model = copy.deepcopy(scene.model)
    model.model.layers[1].mlp.up_proj.weight.data[3, 3] = NAN
    return model


def looked_into(scene: Scene, **changes: Any) -> object:
    """Probe the model."""
    from hf_posenc.insight.probe import probe

    given = {
        "model": scene.model, "tokenizer": tokenizer(), "text": scene.saved["words"], "length": 32, "samples": 1,
        "scored": 4, **changes,
    }  # fmt: skip
    return probe(given.pop("model"), given.pop("tokenizer"), **given)


def measured(scene: Scene, **changes: Any) -> object:
    """Evaluate the model."""
    from hf_posenc.eval import evaluate

    given = {
        "model": scene.model, "tokenizer": tokenizer(), "text": scene.saved["words"], "lengths": [32], "samples": 1,
        "scored": 4, "tasks": ["posenc_token_nll"], **changes,
    }  # fmt: skip
    return evaluate(given.pop("model"), given.pop("tokenizer"), **given)


def compared(scene: Scene, **changes: Any) -> object:
    """Compare two schemes on the model."""
    from hf_posenc.eval import compare

    given = {
        "model": scene.model, "tokenizer": tokenizer(), "text": scene.saved["words"], "lengths": [32], "samples": 1,
        "scored": 4, "tasks": ["posenc_token_nll"], "schemes": "yarn", "out": scene.folder / "results", **changes,
    }  # fmt: skip
    return compare(given.pop("model"), given.pop("schemes"), **given)


def with_text(act: Callable[..., object], content: Any, *, with_scheme: bool) -> Callable[[Scene], object]:
    """Run on a text: a path as it is, or a file with that content."""

    def run(scene: Scene) -> object:
        given = content
        if with_scheme:
            given = scene.desk / "text.txt"
            given.write_bytes(content if isinstance(content, bytes) else content.encode())
        elif content == ".":
            given = scene.desk
        return act(scene, text=given)

    return run


def settings() -> list[Row]:
    """`Training` refuses its settings by itself."""

    def made(name: str, value: Any) -> Callable[[Scene], object]:
        from hf_posenc.training import Training

        return lambda _: Training(**({"length": 16, "steps": 1} | {name: value}))

    return [Row(44, f"{name} {str(value)[:12]!r}", TRAIN, f"{name}=", made(name, value)) for name, value in SETTINGS]


def fine_tuning() -> list[Row]:
    """What `finetune` takes besides."""
    known: list[tuple[int, str, Errors, str, dict[str, Any]]] = [
        (20, "no model", errors.UnsupportedModel, "got None", {"model": None}),
        (20, "a path", errors.UnsupportedModel, "got 'a/path'", {"model": "a/path"}),
        (70, "no tokenizer", KIND, "tokenizer.+None", {"tokenizer": None}),
        (70, "a name", KIND, "tokenizer.+'gpt2'", {"tokenizer": "gpt2"}),
        (70, "vocabulary past the embeddings", errors.InvalidInput, "token 499.+96 embeddings",
         {"tokenizer": tokenizer(500), "texts": ["w497 w1 " * 40]}),
        (70, "words it does not know", errors.InvalidInput, "100%.+'<unk>'", {"texts": ["some words " * 40]}),
        (69, "one text", KIND, "texts is a list.+'w0", {"texts": TEXT}),
        (69, "no texts", KIND, "texts.+None", {"texts": None}),
        (69, "no documents", errors.LengthContradiction, "0 tokens", {"texts": []}),
        (69, "empty document", errors.LengthContradiction, "0 tokens", {"texts": [""]}),
        (69, "bytes", KIND, "b'w1'", {"texts": [b"w1"]}),
        (69, "numbers", KIND, "got 7", {"texts": [TEXT, 7]}),
        (69, "one held-out text", KIND, "held_out is a list", {"held_out": TEXT}),
        (69, "held-out numbers", KIND, "got 7", {"held_out": [7]}),
        (69, "held-out too short", errors.LengthContradiction, "less than the 64", {"held_out": ["w1"]}),
        (44, "settings of a mapping", KIND, "Settings.+'length'", {"training": {"length": 16}}),
        (39, "out of a number", KIND, "path, got 7", {"out": 7}),
        (39, "out without a name", KIND, "path, got ''", {"out": ""}),
        (39, "out with a NUL", errors.FolderUnusable, r"a\\x00b", {"out": "a\0b"}),
        (39, "out of 300 letters", errors.FolderUnusable, "too long", {"out": "x" * 300}),
        (12, "argument", TRAIN, "'learning_rat'", {"arguments": {"learning_rat": 1}}),
        (12, "list of arguments", KIND, r"arguments.+\[1\]", {"arguments": [1]}),
    ]  # fmt: skip
    reading = {"model": ("yarn", {"factor": 2})}
    found = [
        Row(number, f"finetune {name}", error, message, partial(tuned, **changes), patch=reading["model"])
        for number, name, error, message, changes in known
    ]
    file = lambda scene: tuned(scene, out=scene.saved["file"])  # noqa: E731
    within = lambda scene: tuned(scene, out=scene.saved["file"] / "x")  # noqa: E731
    meta = lambda scene: tuned(scene, model=copy.deepcopy(scene.model).to("meta"))  # noqa: E731
    return [
        *found,
        Row(39, "finetune into a file", errors.FolderUnusable, "is a file", file),
        Row(39, "finetune in a file", errors.FolderUnusable, "is a file", within),
        Row(22, "finetune on meta", TRAIN, "meta device", meta),
        Row(56, "finetune NaN", errors.WeightsNotFinite, "up_proj", lambda s: tuned(s, model=poisoned(s))),
        Row(70, "finetune without a mask", TRAIN, "mask token", tuned, model_type="bert"),
        Row(36, "finetune past the reach", errors.LengthContradiction, "reaches 32", too_long),
        Row(44, "finetune method", TRAIN, "'lroa'.+'lora'", misnamed),
        *[
            Row(44, f"finetune rank of {method}", errors.NoMemory, "rank 2147483647.+GiB", partial(ranked, method))
            for method in ("lora", "dora", "lora_plus", "prompt", "prefix")
        ],
    ]


def too_long(scene: Scene) -> object:
    """Rows longer than the model reaches."""
    from hf_posenc.training import Training

    return tuned(scene, training=Training(length=640, steps=1))


def misnamed(scene: Scene) -> object:
    """A method nobody has."""
    from hf_posenc.training import Training

    return tuned(scene, training=Training(length=16, steps=1, method="lroa"))


def ranked(method: str, scene: Scene) -> object:
    """Matrices larger than any memory."""
    from hf_posenc.training import Training

    return tuned(scene, training=Training(length=16, steps=1, method=method, rank=2**31 - 1))


def measurements() -> list[Row]:
    """What `probe`, `evaluate` and `compare` take, and share."""
    found = []
    for what, act in (("probe", looked_into), ("evaluate", measured), ("compare", compared)):
        plain, length = what == "probe", "length" if what == "probe" else "lengths"
        counts = ("samples", "scored", "rows", "sinks") if plain else ("samples", "scored", "keys", "limit", "longest")
        for name in (length, *counts):
            for value in NO_COUNTS:
                listed = isinstance(value, list) or (name == "lengths" and value == "x")
                if listed and not plain and name == "lengths":
                    continue
                found.append(
                    Row(
                        36 if name == length else 44,
                        f"{what} {name} {str(value)[:9]!r}",
                        COUNT,
                        f"{name} must be whole numbers from 1 to 2147483647, got",
                        partial(act, **{name: value}),
                    )
                )
        found += [
            Row(44, f"{what} seed {value!r}", COUNT, "seed must be a whole number from 0", partial(act, seed=value))
            for value in NO_SEEDS
        ]
        found += [
            Row(69, f"{what} text {name}", error, message, with_text(act, content, with_scheme=number > 4))
            for number, (name, error, message, content) in enumerate(NO_TEXTS)
        ]
        found += [
            Row(56, f"{what} NaN", errors.WeightsNotFinite, "up_proj", lambda s, a=act: a(s, model=poisoned(s))),
            Row(70, f"{what} with a number for a tokenizer", KIND, "okenizer.+7", partial(act, tokenizer=7)),
        ]
        if plain:
            continue
        found += [
            Row(36, f"{what} lengths of words", COUNT, "'a'", partial(act, lengths=["a"])),
            Row(36, f"{what} lengths of None", COUNT, "None", partial(act, lengths=[None])),
            Row(36, f"{what} depth {2!r}", COUNT, "depths must lie between 0 and 1, got 2", partial(act, depths=[2])),
            Row(36, f"{what} depth nan", COUNT, "got nan", partial(act, depths=[NAN])),
            Row(36, f"{what} depth of a word", COUNT, "'x'", partial(act, depths=["x"])),
            Row(36, f"{what} no depths", COUNT, "depths has no number", partial(act, depths=[])),
            Row(68, f"{what} task of a text", errors.BadComparison, "list", partial(act, tasks="posenc_ppl")),
            Row(68, f"{what} task of a number", errors.BadComparison, "7", partial(act, tasks=[7])),
            Row(68, f"{what} tasks of a number", errors.BadComparison, "got 7", partial(act, tasks=7)),
            Row(68, f"{what} empty task", errors.BadComparison, "''", partial(act, tasks=[""])),
            Row(68, f"{what} task newline", errors.BadComparison, r"a\\nb", partial(act, tasks=["a\nb"])),
            Row(68, f"{what} task up", measuring.UntrustedTask, r"\.\./x", partial(act, tasks=["../x"])),
            Row(68, f"{what} long task", errors.BadComparison, "xxx…", partial(act, tasks=["x" * 300 + "y"])),
            Row(35, f"{what} task", errors.BadComparison, "'posenc_ppl'", partial(act, tasks=["posenc_pl"])),
            Row(67, f"{what} folder of tasks", KIND, "include_path.+7", partial(act, include_path=7)),
            Row(20, f"{what} no model", KIND, "got None", partial(act, model=None)),
            Row(20, f"{what} a number", KIND, "got 7", partial(act, model=7)),
        ]  # fmt: skip
    return found


def alone() -> list[Row]:
    """What only one of them takes."""
    found = [
        Row(2, f"compare schemes {str(value)[:14]!r}", errors.BadComparison, message, partial(compared, schemes=value))
        for value, message in (
            (None, "None"), (7, "7"), ("", "no scheme"), ([], "no scheme"), (["yarn", 7], "entry 7"),
            ([("yarn",)], r"entry \('yarn',\)"), ([("yarn", None)], "entry"), ({"yarn": {}}, "words or a list"),
            (b"yarn", "words or a list"), ([None], "entry None"),
        )
    ]  # fmt: skip
    options = {"sed": 3}
    return [
        *found,
        *(
            Row(2, f"compare against {value!r}", errors.BadComparison, "the schemes are yarn, pi",
                partial(compared, schemes="yarn,pi", against=value))
            for value in ("ntk", "", 3, ["yarn"])
        ),
        Row(39, "compare into None", KIND, "None", partial(compared, out=None)),
        Row(39, "compare into no name", KIND, "''", partial(compared, out="")),
        Row(39, "compare into NUL", errors.FolderUnusable, r"x00", partial(compared, out="a\0b")),
        Row(39, "compare into 300 letters", errors.FolderUnusable, "too long", partial(compared, out="x" * 300)),
        Row(39, "compare into a file", errors.FolderUnusable, "is a file", lambda s: compared(s, out=s.saved["file"])),
        Row(12, "evaluate option", errors.UnknownOption, "'sed'.+'seed'", partial(measured, options=options)),
        Row(12, "evaluate list of options", KIND, r"options.+\[1\]", partial(measured, options=[1])),
        Row(12, "evaluate keyword", errors.UnknownOption, "'wat'", partial(measured, wat=1)),
        Row(12, "evaluate factor alone", errors.UnknownOption, "'factor'.+scheme=", partial(measured, factor=2)),
        Row(12, "probe factor alone", errors.UnknownOption, "'factor'.+scheme=", partial(looked_into, factor=2)),
        Row(12, "probe option alone", errors.UnknownOption, "'ramp'.+scheme=", partial(looked_into, ramp="dim")),
        Row(22, "probe on meta", errors.UnsupportedModel, "meta", lambda s: looked_into(s, model=on_meta(s))),
        Row(20, "probe no model", errors.UnsupportedModel, "got None", partial(looked_into, model=None)),
        Row(70, "probe past the vocabulary", errors.InvalidInput, "96 embeddings", partial(past, looked_into)),
        Row(70, "evaluate past the vocabulary", errors.InvalidInput, "96 embeddings", partial(past, measured)),
        Row(70, "probe of unknown words", errors.InvalidInput, "100%.+'<unk>'", partial(strange, looked_into)),
        Row(70, "evaluate unknown words", errors.InvalidInput, "100%.+'<unk>'", partial(strange, measured)),
        Row(44, "batch of 0", COUNT, "batch_size", partial(measured, batch_size=0)),
        Row(44, "batch of a word", COUNT, "batch_size.+'x'", partial(measured, batch_size="x")),
        Row(37, "evaluate too long", errors.NoMemory, r"1,000,000,000 tokens.+GiB\.", partial(huge, measured)),
        Row(37, "probe too long", errors.NoMemory, "tokens.+GiB", partial(looked_into, length=10**9)),
        Row(69, "a sparse file of 1 TB", UNREADABLE, "1,048,576 MiB.+GiB", partial(sparse, measured)),
    ]  # fmt: skip


TASK_FILES: list[tuple[int, str, str, dict[str, str]]] = [
    (67, "syntax", "'.+mine.yaml' cannot be read", {"mine": "task: [\n"}),
    (67, "tab", "cannot be read.+tab|cannot start", {"mine": "task:\n\t- x\n"}),
    (67, "empty", "no mapping but None", {"mine": ""}),
    (67, "list", r"no mapping but \['a'\]", {"mine": "- a\n"}),
    (67, "5,000 deep", "cannot be read", {"mine": "task: " + "[" * 5000 + "]" * 5000}),
    (67, "control characters", "cannot be read", {"mine": "task: \x00\n"}),
    (67, "includes itself", "includes 'mine.yaml'.+Break the circle", {"mine": "include: mine.yaml\ntask: mine\n"}),
    (67, "circle of two", "Break the circle", {"mine": "include: two.yaml\ntask: mine\n", "two": "include: mine.yaml"}),
    (67, "include that is not there", "'nowhere.yaml', which is not there", {"mine": "include: nowhere.yaml\n"}),
    (68, "one name twice", "'mine' is in.+one.yaml.+two.yaml.+Rename", {"one": "task: mine", "two": "task: mine"}),
    (68, "slash", "is called 'a/b'.+without slashes", {"mine": "task: a/b"}),
    (68, "up", r"is called '\.\.'", {"mine": "task: .."}),
    (68, "newline", r"is called 'a\\nb'", {"mine": 'task: "a\\nb"'}),
    (68, "300 letters", "is called 'xxx.+at most 200", {"mine": "task: " + "x" * 300}),
]
"""Content of task files, by their names; asked for is always ``mine``."""
DOCUMENTS: list[tuple[int, str, Errors, str, str, str | bytes]] = [
    (72, "no such column", UNREADABLE, "no field 'text' in line 1 of d.jsonl, only txt", "d.jsonl", '{"txt": "a"}\n'),
    (72, "zero rows", measuring.TextTooShort, "None of 0 documents", "d.jsonl", ""),
    (72, "number for a cell", UNREADABLE, "'text' in line 1.+holds 7, which is no text", "d.jsonl", '{"text": 7}\n'),
    (72, "list for a cell", UNREADABLE, r"holds \['a'\]", "d.jsonl", '{"text": ["a"]}\n'),
    (72, "null for a cell", measuring.TextTooShort, "1 are empty", "d.jsonl", '{"text": null}\n'),
    (72, "no JSON", UNREADABLE, "line 1.* is not valid JSON", "d.jsonl", "{\n"),
    (72, "deep JSON", UNREADABLE, "line 1.* is not valid JSON", "d.jsonl", "[" * 100_000),
    (72, "list for a record", UNREADABLE, "no field 'text'.+list", "d.jsonl", "[1]\n"),
    (69, "UTF-16 document", UNREADABLE, "d.txt.+utf-8", "d.txt", b"\xff\xfea\x00"),
    (69, "short document", measuring.TextTooShort, "None of 1 documents has the 32 tokens", "d.txt", "w1"),
    (69, "blank document", measuring.TextTooShort, "1 are empty", "d.txt", " \n "),
    (69, "folder without texts", UNREADABLE, "no text files", "d.bin", b"x"),
]


def with_tasks(files: dict[str, str]) -> Callable[[Scene], object]:
    """Measure a task of the user's own."""

    def act(scene: Scene) -> object:
        folder = scene.desk / "tasks"
        folder.mkdir()
        for name, content in files.items():
            (folder / f"{name}.yaml").write_text(content, encoding="utf-8")
        return measured(scene, tasks=["mine"], include_path=folder, trust_tasks=True)

    return act


def with_documents(name: str, content: str | bytes) -> Callable[[Scene], object]:
    """Measure documents of the user's own."""

    def act(scene: Scene) -> object:
        folder = scene.desk / "documents"
        folder.mkdir()
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return measured(scene, tasks=["posenc_docs"], options={"docs": str(folder)})

    return act


def on_meta(scene: Scene) -> Any:
    """A copy without weights."""
    return copy.deepcopy(scene.model).to("meta")


def past(act: Callable[..., object], scene: Scene) -> object:
    """A tokenizer with more words than the model has rows."""
    many = scene.desk / "many.txt"
    many.write_text(" ".join(f"w{200 + i % 90}" for i in range(900)))
    return act(scene, tokenizer=tokenizer(500), text=many)


def strange(act: Callable[..., object], scene: Scene) -> object:
    """A text of which the tokenizer knows no word."""
    text = scene.desk / "strange.txt"
    text.write_text("some other words " * 300)
    return act(scene, text=text)


def huge(act: Callable[..., object], scene: Scene) -> object:
    """Passkeys at a length no machine reads: the prompts are never made."""
    return act(scene, lengths=[10**9], tasks=["posenc_passkey"], text=None)


def sparse(act: Callable[..., object], scene: Scene) -> object:
    """A file that says it has 1 TB, and takes no room."""
    file: Path = scene.desk / "sparse.txt"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)
    return act(scene, text=file)


def rows() -> list[Row]:
    """All of them."""
    torch.manual_seed(0)
    tasks = [Row(n, f"task file {name}", errors.BadComparison, s, with_tasks(f)) for n, name, s, f in TASK_FILES]
    read = [
        Row(n, name, error, message, with_documents(file, held)) for n, name, error, message, file, held in DOCUMENTS
    ]
    return [*settings(), *fine_tuning(), *measurements(), *alone(), *tasks, *read]
