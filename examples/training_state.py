"""The state of a training in one file: written beside the old one, then moved over it, so that it can be killed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


def save_state(file: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], step: int) -> None:
    """Write the parameters, what the optimizers remember of them, and the step."""
    state: dict[str, Tensor] = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
    for i, optimizer in enumerate(optimizers):
        for j, entry in optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{i}.{j}.{name}": torch.as_tensor(value) for name, value in entry.items()}
    state = {name: value.detach().clone().contiguous() for name, value in state.items()}
    half_written = file.with_suffix(".tmp")
    save_file(state | {"step": torch.tensor(step)}, half_written)
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
