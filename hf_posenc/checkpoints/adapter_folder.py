"""Read a saved PEFT adapter: its scheme, weights, position parameters and configuration."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from hf_posenc.core.files.hf_errors import reason_of
from hf_posenc.core.files.paths import checked_name
from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import CheckpointMismatch, ModelNotFound, PeftAdapterMismatch, PosEncError, nearest, shown
from hf_posenc.patching.config_guard import CODE_KEY, GUARD_KEY
from hf_posenc.patching.peft_sidecar import (
    DIGEST,
    OWN_DIGEST,
    PARAMETERS,
    PEFT_CONFIG,
    SIDECAR,
    read_json,
    sidecar_digest,
    unguard_adapter_config,
)
from hf_posenc.patching.scheme_config import SchemeConfig, warn_of_changed_code

if TYPE_CHECKING:
    from peft import PeftConfig


PEFT_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class AdapterFolder:
    """A PEFT adapter on disk whose sidecar has been read and checked.

    Attributes:
        path: local folder.
        scheme: scheme that the adapter was trained under; None if it has no sidecar.
    """

    path: Path
    scheme: SchemeConfig | None

    @classmethod
    def open(cls, name_or_path: str | os.PathLike[str], **hub: Any) -> AdapterFolder:
        """Find the folder, download it if needed, and read its sidecar.

        Args:
            name_or_path: folder or Hub name.
            **hub: options of the Hub, such as ``revision``.
        """
        opened = cls(local_folder(checked_name(name_or_path, "A PEFT adapter"), hub), None)
        with opened.explained_errors():
            return replace(opened, scheme=opened._sidecar())

    @contextmanager
    def explained_errors(self) -> Iterator[None]:
        """Turn errors of PEFT and safetensors about this adapter into `PeftAdapterMismatch`."""
        try:
            with explained_imports():
                yield
        except PosEncError:
            raise
        except Exception as error:  # PEFT checks little, so a damaged adapter may cause any error
            raise PeftAdapterMismatch(
                f"The PEFT adapter in {self.path} does not fit this base: {reason_of(error)}. Load the base it was "
                "trained on, or save the adapter again."
            ) from error

    def _sidecar(self) -> SchemeConfig | None:
        file, config = self.path / SIDECAR, self.path / PEFT_CONFIG
        if not file.exists():
            if (config.is_file() and GUARD_KEY in read_json(config)) or (self.path / PARAMETERS).exists():
                raise PeftAdapterMismatch(
                    f"The PEFT adapter in {self.path} was trained under a position scheme, and its {SIDECAR} is "
                    "missing. Copy the whole folder, or save the adapter again."
                )
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
                f"{file} was changed: its {OWN_DIGEST} does not fit its content. Copy or save the adapter again."
            )
        warn_of_changed_code(code, scheme.layout)
        return scheme

    def weights(self) -> dict[str, Tensor]:
        """Weights of the adapter by name.

        Raises:
            PeftAdapterMismatch: the file is missing or damaged, or a value is not finite.
        """
        file = self.path / PEFT_WEIGHTS
        if not file.is_file():
            raise PeftAdapterMismatch(f"{self.path} has no {PEFT_WEIGHTS}. Save the adapter again, as safetensors.")
        weights = tensors_of(file, file.read_bytes())
        for name, value in weights.items():
            if not value.isfinite().all():
                raise PeftAdapterMismatch(f"{file} has infinite or NaN values in {name!r}. Train the adapter again.")
        return weights

    def position_parameters(self) -> dict[str, Tensor]:
        """Learned position parameters stored beside the adapter; empty if there are none."""
        digest = None if self.scheme is None else read_json(self.path / SIDECAR).get(DIGEST)
        if digest is None:
            return {}
        file = self.path / PARAMETERS
        data = file.read_bytes() if file.is_file() else b""
        if hashlib.sha256(data).hexdigest() != digest:
            raise PeftAdapterMismatch(f"{file} does not match {SIDECAR}. Copy or save the adapter again.")
        return tensors_of(file, data)

    def peft_config(self) -> PeftConfig:
        """Configuration of the adapter, with known keys only. PEFT's errors about its values are not caught."""
        from peft import PeftConfig

        file = self.path / PEFT_CONFIG
        config = drop_unset_unknown_keys(unguard_adapter_config(read_json(file), str(file)), file)
        if config.get("megatron_core") not in (None, "megatron.core"):
            raise PeftAdapterMismatch(
                f"{file} names a module to import, megatron_core {shown(config['megatron_core'])}. Remove that, or "
                "load it with PEFT itself."
            )
        config["auto_mapping"] = None  # names the class of the base, for PEFT's Auto classes, which import it
        return PeftConfig.from_peft_type(**config)


def stated_base(folder: Path) -> tuple[str, str | None]:
    """Name of the base model that the adapter in ``folder`` was trained on, and its revision or None."""
    config = read_json(folder / PEFT_CONFIG)
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(base, str) or not base:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} does not name its base. Load the base, and pass this as peft_adapter=."
        )
    return base, revision if isinstance(revision, str) and revision else None


def local_folder(name: str, hub: Mapping[str, Any], files: Iterable[str] = ("*.json", "*.safetensors")) -> Path:
    """The local folder of ``name``: the folder itself, or the folder that the files of a Hub name are downloaded to.

    Raises:
        ModelNotFound: the Hub name cannot be downloaded.
    """
    options = {option: value for option, value in hub.items() if value is not None}
    subfolder = options.pop("subfolder", "")
    if Path(name).is_dir():
        return Path(name, subfolder)
    from huggingface_hub import snapshot_download

    options.pop("proxies", None)  # an option of requests, which huggingface_hub no longer uses
    patterns = [f"{subfolder}/{pattern}".lstrip("/") for pattern in files]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, **options), subfolder)
    except (OSError, ValueError) as error:  # all errors of huggingface_hub are subclasses of these
        raise ModelNotFound(
            f"The PEFT adapter {name!r} is not available: {reason_of(error)}. Check the name."
        ) from error


def tensors_of(file: Path, data: bytes) -> dict[str, Tensor]:
    """Tensors by name in ``data``, the content of the safetensors file ``file``."""
    try:
        return load(data)
    except SafetensorError as error:
        raise PeftAdapterMismatch(f"{file} cannot be read: {error}. Copy or save the adapter again.") from error


def drop_unset_unknown_keys(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Remove keys that this version of PEFT does not know, if their values are empty. Refuse others.

    New releases of PEFT add options that are off by default, and write all options into the file.
    """
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING, PeftConfig

    kind, kinds = config.get("peft_type"), PEFT_TYPE_TO_CONFIG_MAPPING
    advice = "Correct it, or update PEFT if a later version wrote it: pip install -U peft."
    if not isinstance(kind, str) or kind not in kinds:
        names = [str(one.value) for one in kinds]
        close = nearest(kind, names)  # type: ignore[arg-type]
        raise PeftAdapterMismatch(f"{file} has the kind {shown(kind)}, which this PEFT does not know.{close} {advice}")
    known = {field.name for cls in (kinds[kind], PeftConfig) for field in fields(cls)}
    for name in config.keys() - known:
        if config[name] not in (None, False, "", [], {}):
            raise PeftAdapterMismatch(
                f"{file} has the key {shown(name)}, which this PEFT does not know.{nearest(name, known)} {advice}"
            )
    return {name: value for name, value in config.items() if name in known}
