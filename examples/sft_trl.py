"""Supervised fine-tuning of a patched model with TRL: conversations too long for the unpatched model.

    python examples/sft_trl.py --output runs/sft                          # the bundled starter Llama, minutes on a CPU
    python examples/sft_trl.py --model HuggingFaceTB/SmolLM2-135M-Instruct --scheme yarn --factor 4 --length 8192 \\
        --data chats.jsonl --steps 200 --learning-rate 2e-4 --bf16 --gradient-checkpointing --output runs/smol-sft

Needs TRL: pip install trl. A patched model is passed to SFTTrainer like any other model, with TRL's own PEFT wrapping,
loss and packing. The saved adapter stores the scheme, including learned positions. To load it:

    hf_posenc.from_pretrained(MODEL, peft_adapter="runs/sft")

--data is a file of JSON lines. Each line is {"messages": [{"role": "user", "content": …}, {"role": "assistant", …}, …]}
or {"prompt": …, "completion": …}, as messages or as texts. Only answers count in the loss. Every answer among messages
is one training example, with all messages before it as the prompt. Without --data, conversations are made from the
standard library: a piece of source code, a question about its last function, and the first paragraph of that function's
docstring. Interrupted? Add --resume.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from common import load_model, progress_bar, run_command
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_callback import PrinterCallback

import hf_posenc
from hf_posenc.checkpoints.model_name import last_complete
from hf_posenc.core.files.staged import move_in
from hf_posenc.eval.texts.measured_text import HELD_OUT, TRAINING, module_text
from hf_posenc.texts.files import json_lines
from hf_posenc.training.finetune import ProgressReport
from hf_posenc.training.methods import lora
from hf_posenc.training.run_folder import UNFINISHED, RunFinished, StopAtLastStep, WriteManifest, start_run

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)  # for tokenizers without a chat template
TRAINED = 400  # conversations to train on
MEASURED = 16  # conversations to measure on
Conversation = dict[str, list[dict[str, str]]]


def main() -> None:
    """Parse the command line and run."""
    run_command(run, parse())


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama", help="a starter's name, a folder or a Hub name (default: llama)")
    parser.add_argument("--scheme", default="yarn", help="see `hf-posenc list` (default: yarn)")
    parser.add_argument("--factor", type=float, default=4.0, help="target length / trained length (default: 4)")
    parser.add_argument("--length", type=int, help="tokens of the longest conversation (default: the target length)")
    parser.add_argument("--steps", type=int, default=40, help="optimiser steps (default: 40)")
    parser.add_argument("--batch", type=int, default=1, help="conversations per step and process (default: 1)")
    parser.add_argument("--packing", action="store_true", help="pack conversations into rows without mixing them")
    parser.add_argument(
        "--learning-rate", type=float, default=1e-3, help="peak; lower for large models (default: 1e-3)"
    )
    parser.add_argument("--rank", type=int, default=16, help="rank of the LoRA matrices (default: 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help="JSON lines to train on (default: from the standard library)")
    parser.add_argument("--held-out", type=Path, help="JSON lines to measure on (default: from other modules)")
    parser.add_argument("--output", type=Path, required=True, help="folder for checkpoints and the adapter")
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint in --output")
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints (default: 20)")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="less memory, more time")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> None:
    """Patch the model, measure it, train it, and measure it again."""
    try:
        from trl import SFTConfig, SFTTrainer
    except ImportError as error:
        raise SystemExit(f"TRL cannot be imported: {error}. Install it with pip install trl.") from error
    model, tokenizer = load(arguments.model)
    torch.manual_seed(arguments.seed)  # for schemes that draw parameters at random
    report = hf_posenc.describe(hf_posenc.patch_model(model, arguments.scheme, factor=arguments.factor))
    length = arguments.length or report.target_length
    settings = {name: str(value) for name, value in vars(arguments).items() if name not in ("output", "resume")}
    start_run(arguments.output, settings, resume=arguments.resume)
    resumed = last_complete(arguments.output) if arguments.resume else None
    with progress_bar() as progress:
        task = progress.add_task("training", total=1.0, loss="")
        trainer = SFTTrainer(
            model,
            SFTConfig(
                output_dir=str(arguments.output), max_steps=arguments.steps, max_length=length,
                packing=arguments.packing, eval_packing=False, per_device_train_batch_size=arguments.batch,
                per_device_eval_batch_size=1, learning_rate=arguments.learning_rate, lr_scheduler_type="cosine",
                warmup_steps=round(0.1 * arguments.steps), bf16=arguments.bf16, seed=arguments.seed,
                gradient_checkpointing=arguments.gradient_checkpointing, save_steps=arguments.save_every,
                save_total_limit=2, logging_steps=1, report_to="none", disable_tqdm=True, eval_strategy="no",
                use_cpu=not torch.accelerator.is_available(), dataloader_pin_memory=torch.accelerator.is_available(),
            ),
            train_dataset=dataset(arguments.data, TRAINING, TRAINED, tokenizer, length, arguments.seed),
            eval_dataset=dataset(arguments.held_out, HELD_OUT, MEASURED, tokenizer, length, arguments.seed),
            processing_class=tokenizer,
            peft_config=lora(model, arguments.rank),
            callbacks=[ProgressReport(lambda done, loss: progress.update(task, completed=done, loss=f"{loss:.2f}"))],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(WriteManifest())
        trainer.add_callback(StopAtLastStep())
        first = trainer.is_world_process_zero()
        if first:
            print(report)
        before = None if resumed else trainer.evaluate()["eval_loss"]
        with suppress(RunFinished):
            trainer.train(resume_from_checkpoint=resumed)
        after = trainer.evaluate()["eval_loss"]
        staged = arguments.output / UNFINISHED
        trainer.save_model(str(staged))
    if first:
        (staged / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle; run.json has the same content
        move_in(staged, arguments.output)
        earlier = "" if before is None else f"before: {before:.3f} nats/token of the answers, held out\n"
        print(f"{earlier}after:  {after:.3f}\nadapter: {arguments.output}")


def load(name: str) -> tuple[Any, Any]:
    """Load a model and a tokenizer with a chat template."""
    model, tokenizer = load_model(name)
    tokenizer.chat_template = tokenizer.chat_template or TEMPLATE
    return model, tokenizer


def dataset(file: Path | None, modules: Sequence[str], most: int, tokenizer: Any, length: int, seed: int) -> Any:
    """Dataset of conversations of at most ``length`` tokens: all of a file, or ``most`` about the standard library."""
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    if file is None:
        chats = [chat for name in modules for chat in about(module_text(name), characters=2 * length)]
        random.Random(seed).shuffle(chats)
    else:
        chats = [chat for place, record in json_lines(file) for chat in conversations(record, place)]
        most = len(chats)
    fitting: list[Conversation] = []
    for chat in chats:
        if len(fitting) == most:
            break
        chat_text = tokenizer.apply_chat_template([*chat["prompt"], *chat["completion"]], tokenize=False)
        if len(tokenizer(chat_text, add_special_tokens=False, verbose=False)["input_ids"]) <= length:
            fitting.append(chat)
    if not fitting:
        raise SystemExit(f"No conversation of {file or 'the standard library'} fits {length} tokens. Raise --length.")
    return Dataset.from_list(fitting)


def conversations(record: Any, place: str) -> Iterator[Conversation]:
    """Yield the conversations of a line: one per answer among ``messages``, or one of ``prompt`` and ``completion``."""
    record = record if isinstance(record, dict) else {}
    messages = record.get("messages")
    if isinstance(messages, list) and all(isinstance(one, dict) and "content" in one for one in messages):
        answers = [number for number, one in enumerate(messages) if number and one.get("role") == "assistant"]
        yield from ({"prompt": messages[:number], "completion": [messages[number]]} for number in answers)
    elif "prompt" in record and "completion" in record:
        yield {
            "prompt": as_messages(record["prompt"], "user"),
            "completion": as_messages(record["completion"], "assistant"),
        }
    else:
        raise SystemExit(
            f"{place} has neither messages nor a prompt with a completion, only {', '.join(record) or 'no record'}. "
            "Correct the line, or remove it."
        )


def as_messages(content: Any, role: str) -> list[dict[str, str]]:
    """Convert a text to one message; messages are returned unchanged."""
    return [{"role": role, "content": content}] if isinstance(content, str) else content


def about(source: str, *, characters: int) -> Iterator[Conversation]:
    """Yield a conversation about each function of a source text, after the ``characters`` before the function's end."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    ends = [0]
    for line in source.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (docstring := ast.get_docstring(node)):
            end = ends[node.end_lineno or 0]
            question = f"{source[max(0, end - characters) : end]}\nWhat does {node.name} do?"
            yield {
                "prompt": [{"role": "user", "content": question}],
                "completion": [{"role": "assistant", "content": docstring.split("\n\n")[0]}],
            }


if __name__ == "__main__":
    main()
