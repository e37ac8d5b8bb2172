"""`save_pretrained` and `push_to_hub` of a patched model. All files of a saved checkpoint are new, or all are old.

transformers writes the configuration first and the weights last, in place. Interrupted over an earlier checkpoint, it
leaves the weights of one scheme under the configuration of another, which load without an error. Its `push_to_hub`
would overwrite the model card, which says how to load the model, by a card of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import walk_stack
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_posenc.cache.provenance import ENTRY
from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import CheckpointMismatch, NotExpressible, OptionOutOfRange, shown
from hf_posenc.patching.code_bundle import BUNDLE, FROM_BUNDLE, check_code, write_code
from hf_posenc.patching.config_guard import SCHEME_KEY
from hf_posenc.patching.model_card import CARD, update_metadata, write_results
from hf_posenc.patching.offloading import offloaded_values
from hf_posenc.patching.patched_config import check_unchanged
from hf_posenc.patching.peft_sidecar import BASE_KEY, refuse_adapter_folder
from hf_posenc.patching.state import describe, is_patched, patches_in, stacks_of
from hf_posenc.patching.text_limits import raise_limits_in

METHOD = "save_pretrained"


def save_atomically(
    model: nn.Module,
    save_directory: str | os.PathLike[str],
    *args: Any,
    code: str | None = BUNDLE if FROM_BUNDLE else None,
    results: Any = None,
    **kwargs: Any,
) -> None:
    """``save_pretrained`` of a patched model: run the class's own method in a staging folder, then move the files.

    If several processes write, or the model is pushed to the Hub, the class's own method writes directly.

    Args:
        model: a patched model.
        save_directory: folder of the checkpoint.
        *args: arguments of the class's own method.
        code: ``"bundle"`` for a checkpoint that brings its code (`hf_posenc.patching.code_bundle`).
        results: results of an evaluation, for the model card; see `hf_posenc.patching.model_card.write_results`.
        **kwargs: arguments of the class's own method.

    Raises:
        HostConfigInvalid: an entry of the configuration that decides positions was changed after the patch.
        CheckpointMismatch: the configuration does not record the scheme of each patched part.
        NotExpressible: the code cannot be bundled.
        OptionOutOfRange: ``code`` has another value.
        BadComparison: the results have no number of this scheme.
        FolderUnusable: the folder or one of its parents is a file, or the folder holds a PEFT adapter.
    """
    if code not in (None, BUNDLE):
        raise OptionOutOfRange(f"code must be {BUNDLE!r} or None, got {shown(code)}. Pass one of these.")
    for patch in patches_in(model):
        check_unchanged(patch)
    check_recorded(model)
    save_pretrained: Any = getattr(type(model), METHOD)
    unstaged = bool(args or kwargs.get("push_to_hub") or kwargs.get("distributed_checkpoint"))
    if unstaged and (code or results is not None):
        raise NotExpressible(
            "Code and results go into a checkpoint that one process writes into a folder. Leave out push_to_hub, "
            "distributed_checkpoint and arguments without a name; model.push_to_hub(name, code='bundle') uploads."
        )
    folder_to_write(save_directory)  # raises for a file, where transformers only logs an error
    if not getattr(model, "_hf_peft_config_loaded", False):
        refuse_adapter_folder(Path(save_directory))
    if unstaged or not kwargs.get("is_main_process", True):
        return save_pretrained(model, save_directory, *args, **kwargs)
    if not hasattr(model, "hf_device_map") and any(weight.is_meta for weight in model.parameters()):
        # transformers saves offloaded weights only with a device map
        kwargs.setdefault("state_dict", offloaded_values(model))
    if code:
        check_code(model)
    with staged(save_directory) as staging:
        save_pretrained(model, str(staging), **kwargs)
        raise_limits_in(Path(save_directory), model, into=staging)
        if code:
            write_code(model, staging)
        if results is not None:
            write_results(staging, results, describe(model).scheme)


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


METHODS: dict[str, Any] = {METHOD: (nn.Module, save_atomically), "push_to_hub": (PreTrainedModel, push)}
"""Methods that a patched model gets on the instance: name, required class and function."""


def install_atomic_save(model: nn.Module) -> None:
    """Put those `METHODS` on ``model`` that its class has, unless the instance has a method of that name already."""
    for name, (of, method) in METHODS.items():
        if isinstance(model, of) and hasattr(type(model), name) and name not in model.__dict__:
            model.__dict__[name] = partial(method, model)


def remove_atomic_save(model: nn.Module) -> None:
    """Undo `install_atomic_save`."""
    for name, (_, method) in METHODS.items():
        if getattr(model.__dict__.get(name), "func", None) is method:
            del model.__dict__[name]


def check_saver(base: nn.Module) -> None:
    """Refuse the innermost running ``save_pretrained`` if the configuration it saves lacks the scheme of ``base``."""
    callers = (frame.f_locals.get("self") for frame, _ in walk_stack(sys._getframe()) if frame.f_code.co_name == METHOD)
    saver = next((one for one in callers if isinstance(one, nn.Module)), None)
    if saver is None or not any(module is base for module in saver.modules()):
        return
    adapters = getattr(saver, "peft_config", None)
    if not adapters:
        check_recorded(saver)
    elif stacks_of(saver) and not all(BASE_KEY in vars(config) for config in adapters.values()):
        raise _unrecorded(saver, base)


def check_recorded(model: nn.Module) -> None:
    """Refuse to save a model whose configuration does not record the scheme of each of its patched parts."""
    config: Any = getattr(model, "config", None)
    recorded = getattr(config, SCHEME_KEY, None)
    for patch in patches_in(model):
        if recorded != vars(patch.base)[ENTRY]:
            raise _unrecorded(model, patch.base)
    for name, stack in stacks_of(model).items():
        if recorded is not None and not is_patched(stack):
            raise CheckpointMismatch(
                f"The {name} of this {type(model).__name__} is not patched any more, but the configuration records a "
                "scheme for both stacks. Call unpatch_model(model), or patch both stacks, before saving."
            )


def _unrecorded(model: nn.Module, part: nn.Module) -> CheckpointMismatch:
    both_stacks = ", or patch both stacks at once: patch_model(model, scheme)" if stacks_of(model) else ""
    return CheckpointMismatch(
        f"A {type(part).__name__} inside this {type(model).__name__} is patched, but the configuration that is being "
        f"saved does not record its scheme. Save that part alone, or call unpatch_model on it{both_stacks}."
    )
