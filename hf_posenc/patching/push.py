"""`push_to_hub` of a patched model: upload everything that `save_pretrained` writes, including the model card.

The method of transformers would overwrite the model card, which says how to load the model, by a card of its own.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.patching.model_card import CARD, update_metadata


def push(
    model: nn.Module,
    repo_id: str,
    *,
    private: bool | None = None,
    token: bool | str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    commit_message: str = "Upload model",
    commit_description: str | None = None,
    tags: list[str] | None = None,
    **saving: Any,
) -> Any:
    """``push_to_hub`` of a patched model. In an existing model card, only this package's section is replaced.

    Args:
        model: a patched model.
        repo_id: ``owner/name``; created if it does not exist.
        private: whether a new repository is private; by default as set for the account.
        token: access token; by default that of the logged-in user.
        revision: branch to write to; created if it does not exist.
        create_pr: whether to open a pull request.
        commit_message, commit_description: title and description of the commit.
        tags: tags for the model card.
        **saving: arguments of ``save_pretrained``, such as ``code`` and ``results``.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import EntryNotFoundError

    hub = HfApi(token=token)
    name = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if revision is not None and not revision.startswith("refs/pr"):
        hub.create_branch(repo_id=name, branch=revision, exist_ok=True)
    with TemporaryDirectory() as work:
        folder = Path(work) / name.rpartition("/")[2]
        folder.mkdir()
        with suppress(EntryNotFoundError):
            shutil.copy(hub.hf_hub_download(name, CARD, revision=revision), folder / CARD)
        model.save_pretrained(folder, **saving)  # type: ignore[operator]
        text = (folder / CARD).read_text(encoding="utf-8").replace(f'("{folder.name}"', f'("{name}"')
        write_bytes(folder / CARD, text.encode())
        if tags:
            update_metadata(folder, tags=tags)
        return hub.upload_folder(
            repo_id=name, folder_path=folder, revision=revision, create_pr=create_pr,
            commit_message=commit_message, commit_description=commit_description,
        )  # fmt: skip
