"""Find a model and the PEFT adapter on top of it by name. All functions that accept a model's name use this file.

starter:llama                       a bundled model
folder with config.json             a model, with or without a scheme
folder with adapter_config.json     a PEFT adapter; its base is the model it names, or the one that the caller passes
folder with run.json                a run of `hf-posenc finetune`: its result, or else its last complete checkpoint
owner/name                          a model or an adapter on the Hub
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import CONFIG_NAME, logging
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_posenc.checkpoints.adapter_folder import local_folder, stated_base
from hf_posenc.checkpoints.hub import is_hub_adapter, shared_hub_options
from hf_posenc.core.files.json_file import read_object
from hf_posenc.core.files.paths import checked_name
from hf_posenc.errors import CheckpointMismatch, ModelNotFound, PeftAdapterMismatch, shown
from hf_posenc.patching.peft_sidecar import PEFT_CONFIG
from hf_posenc.starters.loading import DTYPE, FOLDER, PREFIX, starter_path

logger = logging.get_logger(__name__)

RUN, MANIFEST, HELD_OUT = "run.json", "complete.json", "held_out.json"
"""Files of a fine-tuning run: its settings; in each checkpoint, a manifest of all other files; the held-out texts."""
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")


@dataclass(frozen=True)
class ModelName:
    """Location of a model and its adapter.

    Attributes:
        model: folder or Hub name of the model itself.
        adapter: folder or Hub name of the PEFT adapter to load on top; None for a model alone.
        hub: options of the Hub for the model.
        adapter_hub: options of the Hub for the adapter.
    """

    model: str
    adapter: str | None = None
    hub: Mapping[str, Any] = field(default_factory=dict)
    adapter_hub: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        given: str | os.PathLike[str],
        *,
        adapter: str | os.PathLike[str] | None = None,
        hub: Mapping[str, Any] | None = None,
    ) -> ModelName:
        """Find a model by its name. Only configurations are read.

        Args:
            given: name of a model, of a bundled model, or of a PEFT adapter, which is loaded on the model it names.
            adapter: name of a PEFT adapter to load on the model.
            hub: keywords of ``from_pretrained`` about the Hub. ``revision`` and ``subfolder`` apply to ``given`` only;
                others, such as ``token``, apply to both names.

        Raises:
            WrongKind: a name is neither text nor a path.
            UnknownStarter: there is no starter of that name.
            ModelNotFound: there is no such folder, the Hub cannot be asked, or the base of an adapter does not exist.
            PeftAdapterMismatch: an adapter names no base, its base is an adapter, or ``adapter`` is not an adapter.
            CheckpointMismatch: the folder holds a fine-tuning run without a result and without a complete checkpoint.
        """
        named = cls(folder_of_run(local_name(given)), hub=dict(hub or {}))
        shared_hub = shared_hub_options(named.hub)
        if adapter is not None:
            peft_adapter = cls(folder_of_run(local_name(adapter)), hub=shared_hub)
            if Path(peft_adapter.model).is_dir() and not (Path(peft_adapter.model) / PEFT_CONFIG).is_file():
                raise PeftAdapterMismatch(
                    f"{shown(peft_adapter.model)} holds no PEFT adapter (no {PEFT_CONFIG}), and a base belongs to one. "
                    "Leave the base out, or name the folder of the adapter."
                )
            return named._under(peft_adapter)
        if not named.is_adapter():
            return named
        stated, revision = stated_base(local_folder(named.model, named.hub))
        try:
            base = cls(local_name(moved_bundled(stated)), hub=shared_hub)._under(named)
        except ModelNotFound as error:
            raise ModelNotFound(
                f"The base of the PEFT adapter {shown(named.model)} is {shown(stated)}, which is not available: "
                f"{str(error).partition('. ')[0]}. Pass the base as the model, and the adapter as "
                "peft_adapter= (--base names the base)."
            ) from error
        return base if revision is None else replace(base, hub={**shared_hub, "revision": revision})

    def is_adapter(self) -> bool:
        """Whether the name leads to a PEFT adapter without a model beside it."""
        if Path(self.model).is_dir():
            folder = Path(self.model, self.hub.get("subfolder") or "")
            return (folder / PEFT_CONFIG).is_file() and not (folder / CONFIG_NAME).exists()
        return not self.hub.get("subfolder") and is_hub_adapter(self.model, self.hub)

    def _under(self, adapter: ModelName) -> ModelName:
        if self.is_adapter():
            raise PeftAdapterMismatch(
                f"The base of the PEFT adapter {shown(adapter.model)} is {shown(self.model)}, which is an adapter "
                "itself. Merge the latter first: hf-posenc merge."
            )
        return replace(self, adapter=adapter.model, adapter_hub=adapter.hub)

    @property
    def tokenizer(self) -> str:
        """Name of the tokenizer: that of the adapter if it has a tokenizer, else that of the model."""
        has_own = self.adapter is not None and any((Path(self.adapter) / name).is_file() for name in TOKENIZER_FILES)
        return str(self.adapter) if has_own else self.model

    @property
    def dtype(self) -> str | None:
        """Default data type of the weights: float32 for bundled models, None for others, which load as stored."""
        return DTYPE if is_bundled(self.model) else None


def local_name(given: str | os.PathLike[str]) -> str:
    """The name with ``~`` and ``starter:`` replaced by folders, as text."""
    if isinstance(given, str) and given.startswith(PREFIX):
        return str(starter_path(given.removeprefix(PREFIX)))  # type: ignore[arg-type]
    return checked_name(os.path.expanduser(given) if isinstance(given, str) and given.startswith("~") else given)


def folder_of_run(name: str) -> str:
    """The last complete checkpoint of a fine-tuning run that has no result yet; any other name unchanged."""
    folder = Path(name)
    if not (folder / RUN).is_file() or (folder / CONFIG_NAME).exists() or (folder / PEFT_CONFIG).exists():
        return name
    checkpoint = last_complete(folder)
    if checkpoint is None:
        raise CheckpointMismatch(
            f"The fine-tuning run in {shown(name)} has no result and no complete checkpoint. Continue it with "
            "resume=True (--resume)."
        )
    return checkpoint


def is_bundled(folder: str) -> bool:
    """Whether ``folder`` is the folder of a bundled model, of this installation or another."""
    return Path(folder).absolute().parts[-3:-1] == FOLDER.parts[-2:]


def moved_bundled(base: str) -> str:
    """Replace the folder of a bundled model in another installation by its name here; other names stay unchanged."""
    path = Path(base)
    moved = is_bundled(base) and (FOLDER / path.name).is_dir() and not path.exists()
    return f"{PREFIX}{path.name}" if moved else base


def last_complete(folder: Path) -> str | None:
    """The newest checkpoint whose files all match its manifest, or None."""
    for checkpoint in reversed(checkpoint_folders(folder)):
        try:
            listed: Any = read_object(checkpoint / MANIFEST)
        except (OSError, ValueError):
            listed = None
        if listed is not None and listed == file_sizes(checkpoint):
            return str(checkpoint)
        logger.warning(f"{checkpoint} is not complete and is skipped. Delete it to save space.")
    return None


def checkpoint_folders(folder: Path) -> list[Path]:
    """The checkpoint folders of a run, oldest first."""
    folders = [p for p in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if p.name.rpartition("-")[2].isdigit()]
    return sorted(folders, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The training step in the name of a checkpoint folder."""
    return int(checkpoint.name.rpartition("-")[2])


def file_sizes(folder: Path) -> dict[str, int]:
    """Size in bytes of every file in a checkpoint by name, without the manifest."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in files}
