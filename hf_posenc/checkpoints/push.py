"""Upload a folder to the Hub: the repository is created before the work begins, and the files are sent after it."""

from __future__ import annotations

from pathlib import Path

from hf_posenc.core.files.hf_errors import reason_of
from hf_posenc.errors import CannotUpload, shown

KEPT_HERE = ("checkpoint-*", "checkpoint-*/*", "*.lock")
"""Files of a run that are for resuming it here, and not part of its result."""


def create_repository(name: str) -> str:
    """Make sure, before hours of work, that a repository can be written to; a new one is private. Returns its name.

    Args:
        name: ``owner/name``, or a name alone for the account that is logged in.

    Raises:
        CannotUpload: It is no such name, nobody is logged in, the account may not write there, or the Hub cannot be
            reached.
    """
    from huggingface_hub import HfApi

    try:
        return str(HfApi().create_repo(name, private=True, exist_ok=True).repo_id)
    except Exception as error:  # of the Hub's client, and of whichever HTTP library it uses
        raise CannotUpload(
            f"{shown(name)} on the Hub cannot be written to: {reason_of(error)}. "
            "Log in with `hf auth login`, or upload later with `hf upload`."
        ) from error


def upload(folder: Path, name: str) -> None:
    """Upload a folder without the checkpoints for resuming.

    Raises:
        CannotUpload: The Hub refuses it; the folder is unchanged.
    """
    from huggingface_hub import HfApi

    try:
        HfApi().upload_folder(repo_id=name, folder_path=folder, ignore_patterns=list(KEPT_HERE))
    except Exception as error:
        raise CannotUpload(
            f"The upload to {shown(name)} failed: {reason_of(error)}. "
            f"The result is kept in {folder}; upload it with `hf upload {name} {folder}`."
        ) from error
