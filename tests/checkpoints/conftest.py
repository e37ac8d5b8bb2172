"""The small models, their logits for one text, and a fake of the Hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..processes import finish, start
from ..small_models import TRAINED, bert, gpt2, llama

FACTOR = 4


class Hub:
    """Fake of `huggingface_hub.HfApi`; ``card`` is the file of an existing model card."""

    def __init__(self, card: str | None) -> None:
        self.card = card
        self.sent: dict[str, bytes] = {}

    def create_repo(self, name: str, *, private: bool | None = None, exist_ok: bool) -> Any:
        assert exist_ok
        return SimpleNamespace(repo_id=name if "/" in name else f"ada/{name}")

    def hf_hub_download(self, name: str, file: str, **_: Any) -> str:
        if self.card is None:
            raise EntryNotFoundError(file)
        return self.card

    def upload_folder(self, *, repo_id: str, folder_path: Path, **_: Any) -> str:
        files = {str(file.relative_to(folder_path)): file for file in Path(folder_path).rglob("*") if file.is_file()}
        self.sent = {name: file.read_bytes() for name, file in files.items()}
        return f"of {repo_id}"


MODELS = {"llama": llama, "gpt2": gpt2, "bert": bert}


@pytest.fixture
def make_model() -> Callable[[str], PreTrainedModel]:
    """The same weights at every call."""

    return lambda kind: MODELS[kind]()


@pytest.fixture
def logits_of() -> Callable[[nn.Module], Tensor]:
    """Logits (or hidden states) at every position of one text as long as the target."""
    ids = torch.randint(5, 64, (2, FACTOR * TRAINED), generator=torch.Generator().manual_seed(1))

    @torch.no_grad()
    def of(model: nn.Module, length: int | None = None) -> Tensor:
        return model.eval()(ids[:, :length])[0]

    return of


@pytest.fixture
def perturb() -> Callable[[nn.Module], None]:
    """Give every trainable or positional parameter another value, as training would."""

    @torch.no_grad()
    def of(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(2)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad or "posenc" in name:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)

    return of


@pytest.fixture
def run_in_new_process(tmp_path) -> Callable[[str], str]:
    """Run a program in a fresh process, in the test's folder; return the last line that it printed."""

    return lambda program: finish(start(["-c", program], cwd=tmp_path)).strip().rpartition("\n")[2]
