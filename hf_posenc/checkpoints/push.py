"""Upload a folder to the Hub: the account is looked at before the work begins, and the files are sent after it."""

from __future__ import annotations

from pathlib import Path

from hf_posenc.core.files.hf_errors import reason_of
from hf_posenc.errors import CannotUpload, shown

KEPT_HERE = ("checkpoint-*", "checkpoint-*/*", "*.lock")
"""Files of a run that are for resuming it here, and not part of its result."""


def check_upload(name: str) -> None:
    """Find out before hours of work whether a repository can be written to.

    Args:
        name: ``owner/name``.

    Raises:
        CannotUpload: it is no such name, nobody is logged in, the account may not write there, or the Hub cannot be
            reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
        account = HfApi().whoami()
    except Exception as error:  # of the Hub's client, and of whichever HTTP library it uses
        raise CannotUpload(
            f"{shown(name)} on the Hub cannot be written to: {reason_of(error)}. "
            "Log in with `hf auth login`, or upload later with `hf upload`."
        ) from error
    owners = [account["name"], *(group["name"] for group in account.get("orgs", ()))]
    if name.partition("/")[0] not in owners or "/" not in name:
        raise CannotUpload(
            f"{shown(name)} does not belong to {account['name']}, who is logged in. Choose {account['name']}/NAME"
            + (f", or the name of one of {', '.join(owners[1:])}." if owners[1:] else ".")
        )


def upload(folder: Path, name: str) -> str:
    """Upload a folder without the checkpoints for resuming; a new repository is private. Returns its address.

    Raises:
        CannotUpload: the Hub refuses it; the folder is unchanged.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, ignore_patterns=list(KEPT_HERE))
    except Exception as error:
        raise CannotUpload(
            f"The upload to {shown(name)} failed: {reason_of(error)}. "
            f"The result is kept in {folder}; upload it with `hf upload {name} {folder}`."
        ) from error
    return str(address)
