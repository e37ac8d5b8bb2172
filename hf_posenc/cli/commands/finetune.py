"""``hf-posenc finetune``: fine-tune a patched model at its target context length."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Context

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Base,
    Dtype,
    Factor,
    Model,
    PushToHub,
    SchemeOptions,
    TargetLength,
    command_line,
    loading_of,
    model_named,
    scheme_options,
    tokenizer_of,
    whole_numbers,
    words_of,
)
from hf_posenc.cli.commands import finetune_options as given
from hf_posenc.cli.commands.find_learning_rate import check_for_range_test, show_range_test
from hf_posenc.cli.commands.finetune_result import show_result
from hf_posenc.cli.config_file import ConfigFile, either, write_config
from hf_posenc.cli.errors import BadArgument
from hf_posenc.cli.next_commands import after_finetune, show_next
from hf_posenc.cli.text_arguments import FIELD, DocumentSeparator, TextField, check_reading, two_sources
from hf_posenc.eval.texts.stdlib_source import HELD_OUT, TRAINING, module_text

if TYPE_CHECKING:
    from torch import nn
    from transformers import TrainerCallback

MEASURED_ON_SOURCES = (
    "The losses are of sources of Python's standard library. Pass --held-out to measure on text like that trained on."
)


def finetune(
    context: Context,
    model: Model,
    scheme: given.Scheme = None,
    factor: Factor = None,
    target_length: TargetLength = None,
    trained_length: given.TrainedLength = None,
    option: SchemeOptions = None,
    text: given.TrainingText = None,
    held_out: given.HeldOut = None,
    text_field: TextField = FIELD,
    document_separator: DocumentSeparator = None,
    streaming: given.Streaming = False,
    recipe: given.Recipe = "full_length",
    length: given.Length = None,
    length_stages: given.LengthStages = None,
    attention_groups: given.AttentionGroups = None,
    steps: given.Steps = None,
    epochs: given.Epochs = None,
    method: given.Method = None,
    batch: given.Batch = None,
    accumulate: given.Accumulate = 1,
    learning_rate: given.LearningRate = None,
    find_learning_rate: given.FindLearningRate = False,
    schedule: given.Schedule = "cosine",
    warmup: given.Warmup = 0.1,
    weight_decay: given.WeightDecay = 0.0,
    rank: given.Rank = 16,
    alpha: given.Alpha = None,
    target_modules: given.TargetModules = None,
    train_embeddings: given.TrainEmbeddings = True,
    packing: given.Packing = "joined",
    seed: given.Seed = 0,
    gradient_checkpointing: given.GradientCheckpointing = False,
    bf16: given.Bf16 = False,
    save_every: given.SaveEvery = 20,
    eval_every: given.EvalEvery = None,
    eval_windows: given.EvalWindows = 32,
    eval_lengths: given.EvalLengths = None,
    report_to: given.ReportTo = None,
    out: given.Out = Path("results/finetune"),
    push_to_hub: PushToHub = None,
    resume: given.Resume = False,
    base: Base = None,
    load_in_4bit: given.LoadIn4Bit = False,
    dtype: Dtype = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a patched model at its target context length.

    The cross-entropy loss of the same last held-out tokens is measured at every length before, during and after
    training. After an interruption, the same command with --resume continues. Under `accelerate launch` the processes
    share the sequences.
    """
    from hf_posenc.checkpoints.four_bit import four_bit_keywords
    from hf_posenc.checkpoints.load import from_pretrained
    from hf_posenc.checkpoints.push import check_upload, upload
    from hf_posenc.checkpoints.run_checkpoints import checkpoint_folders
    from hf_posenc.training import finetune as train
    from hf_posenc.training import lengths_of, range_test
    from hf_posenc.training.recipes import recipe_of

    way = recipe_of(recipe)
    steps, epochs = either(context, "steps", "epochs")
    scheme = way.scheme(scheme)
    if not resume and checkpoint_folders(out):
        raise BadArgument(
            f"{out} holds checkpoints of an earlier run. Continue it with --resume, or name another --out."
        )
    named = model_named(model, base)
    if named.adapter is not None:
        raise BadArgument(
            f"{model} is a PEFT adapter, and training would put another one on it. Continue its run with --resume, or "
            f"merge it first: {shlex.join(['hf-posenc', 'merge', '--model', model, '--out', f'{model}-merged'])}"
        )
    if find_learning_rate:
        check_for_range_test(learning_rate, resume, push_to_hub)
    if push_to_hub is not None:
        check_upload(push_to_hub)
    check_reading([*(text or ()), *(held_out or ())], text_field, document_separator)
    if streaming and not text:
        raise BadArgument("--streaming reads a text while training, and none is named. Pass --text, or leave it out.")
    texts, measured_on = two_sources(text, held_out, text_field, document_separator, streaming=streaming)
    with resume_hint(context, resume), output.progress() as show_progress:
        patched = from_pretrained(
            **(loading_of(named, dtype) | (four_bit_keywords() if load_in_4bit else {})), scheme=scheme, factor=factor,
            target_length=target_length, trained_length=trained_length, **scheme_options(scheme, option),
        )  # fmt: skip
        if scheme is not None:
            check_effect(patched, scheme)
        chosen = {
            "length": length, "length_stages": length_stages, "attention_groups": attention_groups, "steps": steps,
            "epochs": epochs, "method": method, "batch": batch, "learning_rate": learning_rate,
            "eval_every": eval_every,
        }  # fmt: skip
        training = way.training(
            patched, accumulate=accumulate, schedule=schedule, warmup=warmup, weight_decay=weight_decay, rank=rank,
            alpha=alpha, target_modules=tuple(words_of(target_modules)), train_embeddings=train_embeddings,
            packing=packing, seed=seed, gradient_checkpointing=gradient_checkpointing, bf16=bf16, save_every=save_every,
            eval_windows=eval_windows, eval_lengths=tuple(whole_numbers("--eval-lengths", eval_lengths)),
            report_to=tuple(words_of(report_to)),
            **{name: value for name, value in chosen.items() if value is not None},
        )  # fmt: skip
        if find_learning_rate:
            tested = range_test(
                patched, tokenizer_of(named), texts or modules(TRAINING), training,
                progress=lambda share, loss: show_progress(share, f"loss {loss:.3f}"),
            )  # fmt: skip
            show_range_test(tested, context, out, as_json)
            return
        tuned = train(
            patched, tokenizer_of(named), texts or modules(TRAINING), training,
            held_out=measured_on or modules(HELD_OUT), output=out, resume=resume,
            announce=lambda start: output.note(str(start)),
            on_read=lambda documents, tokens: show_progress(None, f"read {documents:,} documents, {tokens:,} tokens"),
            progress=lambda share, loss: show_progress(share, f"loss {loss:.3f}"),
            callbacks=[first_process(lambda: write_config(context, out))],
        )  # fmt: skip
    if tuned.first:  # of several processes, one reports
        if push_to_hub is not None:
            output.note(f"Uploaded to {upload(out, push_to_hub)}")
        show_result(tuned, lengths_of(patched)[0], out, "model" if training.method == "full" else "adapter", as_json)
        if not as_json:
            if text and not held_out:
                output.show_text(MEASURED_ON_SOURCES)
            show_next(after_finetune(out, tuned.model))


def first_process(action: Callable[[], None]) -> TrainerCallback:
    """A callback that acts once, as training begins and its folder is this run's, in one process of several."""
    from transformers import TrainerCallback

    class AtStart(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                action()

    return AtStart()


def check_effect(patched: nn.Module, asked: str) -> None:
    """Refuse to fine-tune under a scheme that changes nothing: it has nothing to learn, and training no effect on it.

    Raises:
        BadArgument: the patch is an identity, adds no parameters, is no recipe, which acts in training alone, and
            does not read past a position table, which the effect probe cannot compare with anything.
    """
    from hf_posenc.patching.state import describe, scheme_of

    report = describe(patched)
    scheme = scheme_of(patched)
    recipe = any(part.recipe for part in scheme.schemes)
    past_table = scheme.geometry.table is not None and report.target_length > scheme.geometry.table
    if report.proof.verdict == "identity" and report.parameters_added == 0 and not recipe and not past_table:
        raise BadArgument(
            f"Scheme {asked} computes what the model computes already, at a target length of {report.target_length:,} "
            f"and a trained length of {report.trained_length:,}. Ask for more with --factor or --target-length."
        )


@contextmanager
def resume_hint(context: Context, resuming: bool) -> Iterator[None]:
    """If the block is interrupted, write the command that resumes it to stderr."""
    try:
        yield
    except KeyboardInterrupt:
        again = command_line(context) + ("" if resuming else " --resume")
        output.fail(f"Interrupted. The last complete checkpoint is kept; resume with: {again}")
        raise


def modules(names: Sequence[str]) -> list[str]:
    """Sources of modules of the standard library."""
    return [module_text(name) for name in names]
