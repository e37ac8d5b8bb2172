"""``hf-posenc finetune``: fine-tune a patched model at its target context length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson, PushToHub
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.commands.finetune_options import FinetuneOptions
from hf_posenc.cli.commands.finetune_result import show_result
from hf_posenc.cli.commands.finetune_setup import set_up
from hf_posenc.cli.config_file import write_config
from hf_posenc.cli.next_commands import after_finetune, show_next
from hf_posenc.cli.option_group import expands
from hf_posenc.cli.output_paths import check_output_folder
from hf_posenc.cli.resume_hint import resume_hint
from hf_posenc.cli.text_arguments import FIELD

if TYPE_CHECKING:
    from transformers import TrainerCallback

LearningRate = Annotated[
    float | None, Option(help="Peak learning rate; default: by method and size of the model, as advise prints it.")
]
Resume = Annotated[bool, Option("--resume", help="Resume from the last complete checkpoint in --out.")]
CHECKPOINT = "The last complete checkpoint is kept"
MODEL_FILES = ("config.json", "adapter_config.json")
MEASURED_ON_SOURCES = (
    "The losses are of sources of Python's standard library: --text is too short to hold out its end, or is streamed. "
    "Pass --held-out to measure on text like that trained on."
)

ELSEWHERE = (
    "eval and compare measure on sources of Python's standard library, unless --text names a text like yours that was "
    "not trained on."
)


@expands(FinetuneOptions)
def finetune(
    context: Context,
    options: FinetuneOptions,
    learning_rate: LearningRate = None,
    push_to_hub: PushToHub = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a patched model at its target context length.

    The cross-entropy loss of the same last held-out tokens is measured at every length before, during and after
    training. After an interruption, the same command with --resume continues. Under `accelerate launch` the processes
    share the sequences.
    """
    from hf_posenc.checkpoints.push import check_upload, upload
    from hf_posenc.training import finetune as train
    from hf_posenc.training import lengths_of

    out = options.out
    check_unused(out, resume)
    if push_to_hub is not None:
        check_upload(push_to_hub)
    again = "" if resume else "--resume"
    with resume_hint(context, CHECKPOINT, again), output.progress() as show_progress:
        setup = set_up(context, options, learning_rate)
        tuned = train(
            setup.model, setup.tokenizer, setup.texts, setup.training,
            held_out=setup.held_out, out=out, resume=resume,
            announce=lambda start: output.note(str(start)),
            on_read=lambda documents, tokens: show_progress(None, f"documents read: {documents:,}, tokens: {tokens:,}"),
            progress=lambda share, loss: show_progress(share, f"loss {loss:.3f}"),
            callbacks=[first_process(lambda: write_config(context, out))],
        )  # fmt: skip
    if not tuned.first:  # of several processes, one reports
        return
    with resume_hint(context, CHECKPOINT, again):  # the picture is drawn last, after the losses are shown
        if push_to_hub is not None:
            output.note(f"Uploaded to {upload(out, push_to_hub)}")
        kind = "model" if setup.training.method == "full" else "adapter"
        show_result(tuned, lengths_of(setup.model)[0], out, kind, as_json)
        if not as_json:
            if options.text and not options.held_out and not tuned.start.held_out_tokens:
                output.show_text(MEASURED_ON_SOURCES)
            if tuned.start.held_out_tokens:
                output.show_text(ELSEWHERE)
            show_next(after_finetune(out, tuned.model, held_out_words(options)))


def held_out_words(options: FinetuneOptions) -> list[str]:
    """The options that have another command measure on the held-out text of the run; none for the default text."""
    if not options.held_out:
        return []
    words = [word for name in options.held_out for word in ("--text", name)]
    words += [] if options.text_field == FIELD else ["--set", f"text_field={options.text_field}"]
    separator = options.document_separator
    return words + ([] if separator is None else ["--set", f"document_separator={separator}"])


def check_unused(out: Path, resuming: bool) -> None:
    """Refuse to mix a run with anything else in one folder.

    Raises:
        BadArgument: it holds checkpoints, and the run is not resumed; or a model, or results of another command.
    """
    from hf_posenc.checkpoints.run_checkpoints import RUN, checkpoint_folders

    check_output_folder("--out", out)
    if not (out / RUN).is_file() and any((out / name).is_file() for name in MODEL_FILES):
        raise BadArgument(f"{str(out)!r} holds a model, which the run would overwrite. Choose another --out.")
    if not resuming and checkpoint_folders(out):
        raise BadArgument(
            f"{out} holds checkpoints of an earlier run. Continue it with --resume, or name another --out."
        )


def first_process(action: Callable[[], None]) -> TrainerCallback:
    """A callback that acts once, as training begins and its folder is this run's, in one process of several."""
    from transformers import TrainerCallback

    class AtStart(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                action()

    return AtStart()
