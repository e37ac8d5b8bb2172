"""From the name of a model to what is loaded: the model itself, and the PEFT adapter on top of it.

starter:llama                       a bundled model
folder with config.json             a model, with or without a scheme
folder with adapter_config.json     a PEFT adapter; its base is the one it names, or the one that is given
folder with run.json                what `hf-posenc finetune` writes: the result, else its last complete checkpoint
owner/name                          a model or an adapter of the Hub

Everything that takes a model by name finds it here.
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
from hf_posenc.checkpoints.hub import is_hub_adapter, of_other_names
from hf_posenc.core.files.json_file import read_object
from hf_posenc.core.files.paths import checked_name
from hf_posenc.errors import CheckpointMismatch, ModelNotFound, PeftAdapterMismatch, shown
from hf_posenc.patching.peft_sidecar import PEFT_CONFIG
from hf_posenc.starters.loading import DTYPE, FOLDER, PREFIX, starter_path

logger = logging.get_logger(__name__)

RUN, MANIFEST, HELD_OUT = "run.json", "complete.json", "held_out.json"
"""Files of a fine-tuning run: what it was; in each of its checkpoints, a manifest of all other files; what it was
measured on."""
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")


@dataclass(frozen=True)
class ModelName:
    """Where a model is.

    Attributes:
        model: folder or Hub name of the model itself.
        adapter: folder or Hub name of the PEFT adapter to load on top; None for a model alone.
        hub: options of the Hub that the model is loaded with.
        adapter_hub: those of the adapter.
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
        """Find a model by its name; nothing but configurations is read.

        Args:
            given: name of a model, of a bundled model, or of a PEFT adapter, which is loaded on the model it names.
            adapter: name of a PEFT adapter to load on the model.
            hub: keywords of ``from_pretrained`` about the Hub. A ``revision`` or ``subfolder`` is that of ``given``;
                a ``token`` and the like hold for the other name as well.

        Raises:
            WrongKind: A name is neither text nor a path.
            UnknownStarter: There is no starter of that name.
            ModelNotFound: There is no such folder, or the Hub cannot be asked; or the base of an adapter is not there.
            PeftAdapterMismatch: An adapter names no base, or its base is an adapter; or ``adapter`` is none.
            CheckpointMismatch: The folder holds a fine-tuning run without a result and without a complete checkpoint.
        """
        named = cls(folder_of_run(local_name(given)), hub=dict(hub or {}))
        of_other = of_other_names(named.hub)
        if adapter is not None:
            on_top = cls(folder_of_run(local_name(adapter)), hub=of_other)
            if Path(on_top.model).is_dir() and not (Path(on_top.model) / PEFT_CONFIG).is_file():
                raise PeftAdapterMismatch(
                    f"{shown(on_top.model)} holds no PEFT adapter (no {PEFT_CONFIG}), and a base belongs to one. Leave "
                    "the base out, or name the folder of the adapter."
                )
            return named._under(on_top)
        if not named.is_adapter():
            return named
        stated, revision = stated_base(local_folder(named.model, named.hub))
        try:
            base = cls(local_name(moved_bundled(stated)), hub=of_other)._under(named)
        except ModelNotFound as error:
            raise ModelNotFound(
                f"The base of the PEFT adapter {shown(named.model)} is {shown(stated)}, which is not available: "
                f"{str(error).partition('. ')[0]}. Pass the base as the model, and the adapter as "
                "peft_adapter= (--base names the base)."
            ) from error
        return base if revision is None else replace(base, hub={**of_other, "revision": revision})

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
                "itself. Merge that one first: hf-posenc merge."
            )
        return replace(self, adapter=adapter.model, adapter_hub=adapter.hub)

    @property
    def tokenizer(self) -> str:
        """Where the tokenizer is: with the adapter if that has one, else with the model."""
        own = self.adapter is not None and any((Path(self.adapter) / name).is_file() for name in TOKENIZER_FILES)
        return str(self.adapter) if own else self.model

    @property
    def dtype(self) -> str | None:
        """Data type of the weights where none is asked for: float32 for bundled models; None, as stored, for others."""
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
    found = last_complete(folder)
    if found is None:
        raise CheckpointMismatch(
            f"The fine-tuning run in {shown(name)} has no result and no complete checkpoint. Continue it with "
            "resume=True (--resume)."
        )
    return found


def is_bundled(folder: str) -> bool:
    """Whether ``folder`` is that of a bundled model."""
    return Path(folder).absolute().parent == FOLDER.absolute()


def moved_bundled(base: str) -> str:
    """The bundled model of this installation, for an adapter that was trained on that of another one."""
    path = Path(base)
    moved = path.parts[-3:-1] == FOLDER.parts[-2:] and (FOLDER / path.name).is_dir() and not path.exists()
    return f"{PREFIX}{path.name}" if moved else base


def last_complete(folder: Path) -> str | None:
    """The newest checkpoint whose files all match its manifest; None where there is none."""
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
    found = [p for p in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if p.name.rpartition("-")[2].isdigit()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint folder was written after, from its name."""
    return int(checkpoint.name.rpartition("-")[2])


def file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file in a checkpoint, by name, the manifest's own left out."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in files}
