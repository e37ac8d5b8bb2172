"""Write a fine-tuning run for another framework."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from transformers import AutoConfig

from hf_posenc.checkpoints.export import export
from hf_posenc.checkpoints.plain_config import PlainConfig, is_expressible, plain_config
from hf_posenc.core.files.paths import check_not_taken, folder_to_write
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import TrainingImpossible, WrongKind, nearest, shown
from hf_posenc.patching.config_guard import SCHEME_KEY
from hf_posenc.patching.layer_schemes import is_causal
from hf_posenc.patching.state import is_patched
from hf_posenc.texts import TextSource
from hf_posenc.training.config import Training
from hf_posenc.training.corpus import texts_of
from hf_posenc.training.emit.cards import accelerate_file, check_cards, token_rows
from hf_posenc.training.emit.frameworks import FRAMEWORKS
from hf_posenc.training.emit.run import ACCELERATE, CHECKPOINT, DATA, SCRIPT, Framework, Run
from hf_posenc.training.methods import check_method, learning_rate_for, peft_config_of
from hf_posenc.training.rows import check_reach, lengths_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

NOT_OF_CONFIG = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")
"""Entries of a configuration that do not affect what the model computes."""
NOT_EMITTED = ("eval_every", "eval_lengths", "eval_windows")
"""Settings that are not written for any framework, because no text is held out."""
SCRIPT_TEXT = '''"""Train with {title}; hf_posenc restores the scheme of the checkpoint."""

from hf_posenc import enable_auto

enable_auto()

{body}
'''


@dataclass(frozen=True)
class Emitted:
    """A run written for another framework.

    Attributes:
        command: command that starts the run, in its folder.
        restored: whether the framework's environment needs this package.
        unnamed: whether the trained adapter does not name the scheme, because its base is the unpatched model.
    """

    command: str
    restored: bool
    unnamed: bool


def emit_run(
    framework: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Any,
    training: Training,
    out: str | os.PathLike[str],
    *,
    name: str | None = None,
    four_bit: bool = False,
    cards: int = 1,
) -> Emitted:
    """Write the run of `finetune` as a file for another framework.

    Args:
        framework: a key of `FRAMEWORKS`.
        model: decoder, patched, or unpatched as a control.
        tokenizer: tokenizer of the model.
        texts: training documents, in the forms of `finetune`.
        training: settings of the run.
        out: folder of the file, the documents and the checkpoint, if one is needed.
        name: name or folder of the unpatched model for the framework. Without it, a checkpoint is written.
        four_bit: whether the framework loads the weights in 4 bits.
        cards: GPUs that share each row, in TRL.

    Raises:
        WrongKind: there is no such framework.
        TrainingImpossible: the framework lacks a setting, or cards cannot share rows of the scheme.
        LengthContradiction: rows are longer than the target length of the model.
        UnreadableDocuments: a text cannot be read.
        FolderUnusable: the folder cannot be written to.
    """
    if framework not in FRAMEWORKS:
        raise WrongKind(
            f"{shown(framework)} is no framework.{nearest(framework, FRAMEWORKS)} Choose {', '.join(FRAMEWORKS)}."
        )
    chosen = FRAMEWORKS[framework]
    check_settings(chosen, model, training)
    if cards > 1:
        if not chosen.shares_rows:
            raise TrainingImpossible(f"cards={cards} share rows in TRL alone, not in {chosen.title}. Choose trl.")
        check_cards(model, training, cards, four_bit=four_bit)
        records: Iterable[dict[str, Any]] = token_rows(model, tokenizer, texts, training)
    else:
        documents = texts_of(TextSource.of_texts("texts", texts).documents())
        records = ({"text": text} for text in documents)
    plain = plain_form(model)
    restored = plain is None
    source, config = CHECKPOINT, None
    if chosen.takes_config and plain is not None and name is not None:
        config = entries_of(plain, name)
        if config is not None:  # a folder is named so that the command works in any other
            source = str(Path(name).resolve()) if Path(name).is_dir() else name
    target = folder_to_write(out)
    written = (chosen.file, DATA, CHECKPOINT, SCRIPT, ACCELERATE, *chosen.more)
    check_not_taken(Path(target), written, (chosen.file, DATA))
    with staged(target) as folder:
        write_records(folder / DATA, records)
        if config is None:
            write_checkpoint(model, tokenizer, folder / CHECKPOINT, plain=not restored)
        run = replace(run_of(model, training, source, config or {}, four_bit=four_bit), cards=cards)
        write_yaml(folder / chosen.file, chosen.settings(run))
        if cards > 1:
            write_yaml(folder / ACCELERATE, accelerate_file(cards))
        for file, content in chosen.more.items():
            (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if restored:
            body = chosen.script.replace("FILE", repr(chosen.file))
            (folder / SCRIPT).write_text(SCRIPT_TEXT.format(title=chosen.title, body=body), encoding="utf-8")
    return Emitted(chosen.start(restored=restored, cards=cards), restored, unnamed=bool(config and run.modules))


def check_settings(framework: Framework, model: PreTrainedModel, training: Training) -> None:
    """Check that the framework can train the model with these settings.

    Raises:
        TrainingImpossible: the framework lacks a setting, or the model is an encoder.
        LengthContradiction: rows are longer than the target length of the model.
    """
    if not is_causal(model):
        raise TrainingImpossible(
            f"{framework.title} trains decoders on text, and this {type(model).__name__} is an encoder. "
            "Use hf_posenc.training.finetune."
        )
    for field in fields(training):
        value = getattr(training, field.name)
        if field.name in (*NOT_EMITTED, *framework.without) and value != field.default:
            raise TrainingImpossible(
                f"{field.name}={shown(value)} is set, but {framework.title} has no setting for it. "
                "Leave it out, or use hf_posenc.training.finetune."
            )
    check_reach(model, training.length)


def plain_form(model: PreTrainedModel) -> PlainConfig | None:
    """Return the configuration with which plain transformers trains the same model; None if there is none."""
    if not is_patched(model):
        return PlainConfig(model.config, None, {}, short=False, compared_length=lengths_of(model)[1])
    if not is_expressible(model):
        return None
    plain = plain_config(model)
    return None if plain.short else plain


def entries_of(plain: PlainConfig, name: str) -> dict[str, Any] | None:
    """Return the entries in which ``plain`` differs from the configuration of ``name``; None: write a checkpoint."""
    stored, needed = AutoConfig.from_pretrained(name).to_dict(), plain.config.to_dict()
    if plain.section is not None or SCHEME_KEY in stored:
        return None
    differing = {key: value for key, value in needed.items() if stored.get(key) != value and key not in NOT_OF_CONFIG}
    return json.loads(json.dumps(differing))  # tuples are lists in YAML


def run_of(model: PreTrainedModel, training: Training, source: str, config: dict[str, Any], *, four_bit: bool) -> Run:
    """Collect the values that the file of every framework needs."""
    rate = training.learning_rate or learning_rate_for(training.method, model.num_parameters()).value
    check_method(training.method, model)
    peft_config = peft_config_of(model, training)
    layers: dict[str, Any] = {}
    if peft_config is not None:
        whole = set(peft_config.modules_to_save or ())
        if peft_config.ensure_weight_tying:  # no framework can keep embeddings tied while they are trained
            whole -= {n.rpartition(".")[2] for n, m in model.named_modules() if m is model.get_input_embeddings()}
        layers = {"modules": tuple(sorted(peft_config.target_modules)), "whole": tuple(sorted(whole))}
    dtype = str(model.dtype).removeprefix("torch.")
    return Run(source, config, training=replace(training, learning_rate=rate), dtype=dtype, four_bit=four_bit, **layers)


def write_records(file: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line."""
    with file.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def write_checkpoint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, *, plain: bool) -> None:
    """Write the model to train: a plain checkpoint, or one whose scheme this package restores."""
    tokenizer.save_pretrained(folder)
    if plain and is_patched(model):
        export(model, folder)
    else:
        model.save_pretrained(folder)


def write_yaml(file: Path, settings: dict[str, Any]) -> None:
    """Write the settings that are not None as YAML, in their order."""
    written = {name: value for name, value in settings.items() if value is not None}
    file.write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")
