"""The state of a training in one file: written beside the old one, then moved over it, so that it can be killed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


def about(file: Path) -> dict[str, str]:
    """What a state says of itself, such as its command; empty where there is none."""
    if not file.exists():
        return {}
    with safe_open(file, "pt") as saved:
        return saved.metadata() or {}


def check_command(file: Path, command: str) -> None:
    """Let a training go on only from a state of its own.

    Raises:
        SystemExit: the file is of another command.
    """
    if (of := about(file).get("command", command)) != command:
        raise SystemExit(f"{file} is of «{of}». Choose another --out, or delete it.")


def save_state(
    file: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], step: int, command: str | None = None
) -> None:
    """Write the parameters, what the optimizers remember of them, the step, and the command that trains."""
    state: dict[str, Tensor] = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
    for i, optimizer in enumerate(optimizers):
        for j, entry in optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{i}.{j}.{name}": torch.as_tensor(value) for name, value in entry.items()}
    write_tensors(file, state | {"step": torch.tensor(step)}, {} if command is None else {"command": command})


def write_tensors(file: Path, tensors: Mapping[str, Tensor], about: dict[str, str]) -> None:
    """Write tensors, of which several may share memory, and words about them."""
    half_written = file.with_suffix(".tmp")
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, half_written, about)
    os.replace(half_written, file)


def load_state(file: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Restore them in place; returns the step."""
    state = load_file(file)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[f"model.{name}"])
    for i, optimizer in enumerate(optimizers):
        whole = optimizer.state_dict()
        for key, value in state.items():
            if key.startswith(f"optimizer.{i}."):
                _, _, j, name = key.split(".", 3)
                whole["state"].setdefault(int(j), {})[name] = value
        optimizer.load_state_dict(whole)
    return int(state["step"])


class StageState:
    """The tensors of a training within one of its stages, in a file that says of which command they are.

    Raises:
        SystemExit: the file is of another command.
    """

    def __init__(self, file: Path, command: str) -> None:
        self.file, self.command = file, command
        check_command(file, command)

    def save(self, tensors: Mapping[str, Tensor], stage: int, step: int) -> None:
        """Write all that a step changes."""
        write_tensors(self.file, tensors, {"command": self.command, "stage": str(stage), "step": str(step)})

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], stage: int) -> int:
        """Copy what was saved in this stage, if anything was, into tensors; returns the number of its steps."""
        saved_as = about(self.file)
        if saved_as.get("stage") != str(stage):
            return 0
        with safe_open(self.file, "pt") as saved:
            for name, tensor in tensors.items():
                tensor.copy_(saved.get_tensor(name))
        return int(saved_as["step"])
