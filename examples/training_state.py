"""Save and load the state of a training in one file, which is replaced atomically: a run can be killed at any time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


def about(file: Path) -> dict[str, str]:
    """Metadata of a state, such as its command; empty if there is no file."""
    if not file.exists():
        return {}
    with safe_open(file, "pt") as saved:
        return saved.metadata() or {}


def check_command(file: Path, command: str) -> None:
    """Refuse a state that another command has written.

    Raises:
        SystemExit: the file is of another command.
    """
    if (written_by := about(file).get("command", command)) != command:
        raise SystemExit(f"{file} is of «{written_by}». Choose another --out, or delete it.")


def save_state(
    file: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], step: int, command: str | None = None
) -> None:
    """Write the parameters, the state of the optimizers, the step, and the command of the training."""
    state: dict[str, Tensor] = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
    for i, optimizer in enumerate(optimizers):
        for j, entry in optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{i}.{j}.{name}": torch.as_tensor(value) for name, value in entry.items()}
    write_tensors(file, state | {"step": torch.tensor(step)}, {} if command is None else {"command": command})


def write_tensors(file: Path, tensors: Mapping[str, Tensor], about: dict[str, str]) -> None:
    """Write tensors, which may share memory, and metadata ``about`` them."""
    half_written = file.with_suffix(".tmp")
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, half_written, about)
    os.replace(half_written, file)


def load_state(file: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Restore parameters and optimizers in place; returns the step."""
    state = load_file(file)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[f"model.{name}"])
    for i, optimizer in enumerate(optimizers):
        optimizer_state = optimizer.state_dict()
        for key, value in state.items():
            if key.startswith(f"optimizer.{i}."):
                _, _, j, name = key.split(".", 3)
                optimizer_state["state"].setdefault(int(j), {})[name] = value
        optimizer.load_state_dict(optimizer_state)
    return int(state["step"])


class StageState:
    """File with the tensors of one stage of a training, and the command that it belongs to.

    Raises:
        SystemExit: the file is of another command.
    """

    def __init__(self, file: Path, command: str) -> None:
        self.file, self.command = file, command
        check_command(file, command)

    def save(self, tensors: Mapping[str, Tensor], stage: int, step: int) -> None:
        """Write all tensors that a step changes."""
        write_tensors(self.file, tensors, {"command": self.command, "stage": str(stage), "step": str(step)})

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], stage: int) -> int:
        """Copy the state saved in this stage into ``tensors``; returns its number of steps, 0 without a saved state."""
        saved_as = about(self.file)
        if saved_as.get("stage") != str(stage):
            return 0
        with safe_open(self.file, "pt") as saved:
            for name, tensor in tensors.items():
                tensor.copy_(saved.get_tensor(name))
        return int(saved_as["step"])
