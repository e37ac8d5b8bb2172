"""Read a saved PEFT adapter: its folder, the scheme it was trained under, its weights and position parameters."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from hf_posenc.core.files.hf_errors import reason_of
from hf_posenc.core.files.paths import checked_name
from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import CheckpointMismatch, ModelNotFound, PeftAdapterMismatch, PosEncError
from hf_posenc.patching.stored.config_guard import CODE_KEY, GUARD_KEY
from hf_posenc.patching.stored.peft_sidecar import (
    DIGEST,
    OWN_DIGEST,
    PARAMETERS,
    PEFT_CONFIG,
    SIDECAR,
    read_json,
    sidecar_digest,
)
from hf_posenc.patching.stored.scheme_config import SchemeConfig, warn_of_changed_code

PEFT_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class AdapterFolder:
    """A PEFT adapter on disk whose sidecar has been read and checked.

    Attributes:
        name: folder or Hub name, as it was given.
        path: the local folder.
        scheme: the scheme it was trained under; None where it has no sidecar.
    """

    name: str
    path: Path
    scheme: SchemeConfig | None

    @classmethod
    def open(cls, name_or_path: str | os.PathLike[str], **hub: Any) -> AdapterFolder:
        """Find the folder, download it if need be, and read its sidecar.

        Args:
            name_or_path: folder or Hub name.
            **hub: options of the Hub, such as ``revision``.

        Raises:
            WrongKind: the name is neither text nor a path.
            ModelNotFound: there is no such folder, or the Hub name cannot be downloaded.
            PeftAdapterMismatch: the sidecar is damaged, missing, not as it was written, or of a scheme that is not
                registered here.
        """
        name = checked_name(name_or_path, "A PEFT adapter")
        path = local_folder(name, hub)
        with explained_peft_errors(path):
            return cls(name, path, read_sidecar(path))


@contextmanager
def explained_peft_errors(folder: Path) -> Iterator[None]:
    """Raise errors of PEFT and safetensors about an adapter as one of ours.

    Raises:
        PeftAdapterMismatch: the adapter is damaged, or does not fit its base.
    """
    try:
        with explained_imports():
            yield
    except PosEncError:
        raise
    except Exception as error:  # PEFT checks little, and fails with whatever it meets
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} does not fit this base: {reason_of(error)}. Load the base it was trained "
            "on, or save the adapter again."
        ) from error


def base_of_adapter(folder: str) -> str | None:
    """Name or path of an adapter's base model, if ``folder`` holds an adapter and no model.

    Raises:
        PeftAdapterMismatch: the adapter does not name its base.
    """
    if not (Path(folder) / PEFT_CONFIG).is_file() or (Path(folder) / "config.json").exists():
        return None
    base = read_json(Path(folder) / PEFT_CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} does not name its base. Load that, and pass peft_adapter=."
        )
    return base


def base_revision(folder: str) -> str | None:
    """Revision of the base model that the adapter in ``folder`` was trained on; None where it names none."""
    revision = read_json(Path(folder) / PEFT_CONFIG).get("revision")
    return revision if isinstance(revision, str) and revision else None


def read_sidecar(folder: Path) -> SchemeConfig | None:
    """The scheme that the adapter in ``folder`` was trained under; None where it has no sidecar.

    Raises:
        PeftAdapterMismatch: the sidecar is damaged, missing, not as it was written, or of a scheme that is not
            registered here.
    """
    file = folder / SIDECAR
    if not file.exists():
        check_sidecar_not_lost(folder)
        return None
    content = read_json(file)
    written = content.pop(OWN_DIGEST, None)
    actual = sidecar_digest(content)
    content.pop(DIGEST, None)
    code = content.pop(CODE_KEY, None)
    try:
        scheme = SchemeConfig.read(content, str(file))
    except CheckpointMismatch as error:
        raise PeftAdapterMismatch(str(error)) from error
    if written not in (None, actual):
        raise PeftAdapterMismatch(
            f"{file} is not as it was written: its {OWN_DIGEST} is that of another content. "
            "Copy or save the adapter again."
        )
    warn_of_changed_code(code, scheme.layout)
    return scheme


def check_sidecar_not_lost(folder: Path) -> None:
    """Refuse an adapter that was trained under a scheme and has lost its sidecar.

    Raises:
        PeftAdapterMismatch: the adapter's config guard, or a file of position parameters, shows that it had one.
    """
    config = folder / PEFT_CONFIG
    if (config.is_file() and GUARD_KEY in read_json(config)) or (folder / PARAMETERS).exists():
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} was trained under a position scheme, and its {SIDECAR} is missing. "
            "Copy the whole folder, or save the adapter again."
        )


def local_folder(name: str, hub: Mapping[str, Any] | None = None) -> Path:
    """A folder as it is; a Hub name as the folder its JSON and safetensors files were downloaded to.

    Args:
        name: folder or Hub name.
        hub: options of the Hub; of a ``subfolder``, that is returned.

    Raises:
        ModelNotFound: the Hub name cannot be downloaded.
    """
    options = {option: value for option, value in (hub or {}).items() if value is not None}
    subfolder = options.pop("subfolder", "")
    if Path(name).is_dir():
        return Path(name, subfolder)
    from huggingface_hub import snapshot_download

    options.pop("proxies", None)  # of requests, which huggingface_hub no longer uses
    files = [f"{subfolder}/{pattern}".lstrip("/") for pattern in ("*.json", "*.safetensors")]
    try:
        return Path(snapshot_download(name, allow_patterns=files, **options), subfolder)
    except (OSError, ValueError) as error:  # the hub's errors are one or the other
        raise ModelNotFound(
            f"The PEFT adapter {name!r} is not available: {reason_of(error)}. Check the name."
        ) from error


def read_adapter_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights of the adapter in ``folder``, by name.

    Raises:
        PeftAdapterMismatch: the file is missing or damaged, or holds numbers that are not finite.
    """
    file = folder / PEFT_WEIGHTS
    if not file.is_file():
        raise PeftAdapterMismatch(f"{folder} has no {PEFT_WEIGHTS}. Save the adapter again, as safetensors.")
    try:
        weights = load(file.read_bytes())
    except SafetensorError as error:
        raise PeftAdapterMismatch(f"{file} cannot be read: {error}. Copy or save the adapter again.") from error
    for name, value in weights.items():
        if not value.isfinite().all():
            raise PeftAdapterMismatch(f"{file} has numbers that are not finite in {name!r}. Train the adapter again.")
    return weights


def read_position_parameters(folder: Path) -> dict[str, Tensor]:
    """Read the learned position parameters stored beside an adapter; empty where there are none.

    Raises:
        PeftAdapterMismatch: their file is missing or damaged.
    """
    digest = read_json(folder / SIDECAR).get(DIGEST) if (folder / SIDECAR).exists() else None
    if digest is None:
        return {}
    file = folder / PARAMETERS
    data = file.read_bytes() if file.is_file() else b""
    if hashlib.sha256(data).hexdigest() != digest:
        raise PeftAdapterMismatch(f"{file} is not what {SIDECAR} describes. Copy or save the adapter again.")
    try:
        return load(data)
    except SafetensorError as error:
        raise PeftAdapterMismatch(f"{file} cannot be read: {error}. Copy or save the adapter again.") from error
