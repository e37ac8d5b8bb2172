"""Check that a patched base model hands what attention needs to know of a call down to its attention modules.

Positions, padding and the state of the cache travel as one keyword. A base model whose ``forward`` does not take it
fails at its first call; one that drops it computes on, without padding. So the forward of the patched model is run on
two tokens, up to `attend` of the first attention module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from hf_posenc.errors import AdapterInvalid, PosEncError
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.forward.positions import KEYWORD

if TYPE_CHECKING:
    from hf_posenc.patches.adapter import Adapter

EXAMPLE = "Declare **kwargs in the forward of the base model and of its layers, pass them on, and to `attend` as host="


class _Reached(Exception):
    """The first attention module has come to `attend`; ends the forward pass."""


def check_forward(adapter: Adapter, base: Any) -> None:
    """Refuse a patched base model that does not hand the keyword down to its attention; no attention is computed.

    Raises:
        AdapterInvalid: it does not take the keyword, drops it on the way, or never comes to `attend`.
    """
    name, kind, attentions = type(adapter).__name__, type(base).__name__, base.__dict__[ATTENTIONS]
    token = int(getattr(base.config, "pad_token_id", None) == 0)  # models warn of padding without a mask
    for attention in attentions:
        attention.__dict__["attend"] = _stop
    try:
        with torch.no_grad():
            base(input_ids=torch.tensor([[token, token]], device=next(base.parameters()).device))
    except _Reached as reached:
        if not reached.args[0]:
            _refuse(
                f"The adapter {name} patches a {kind} whose attention does not get the keyword {KEYWORD}, which holds "
                "the positions and the padding of a call"
            )
        return
    except PosEncError:
        raise
    except Exception as error:
        if KEYWORD in str(error):
            _refuse(
                f"The adapter {name} patches a {kind} that does not take the keyword {KEYWORD}, which holds the "
                f"positions and the padding of a call: {str(error).rstrip('.')}"
            )
        return  # it needs more than tokens, or other ones: its own error says so when it is called
    finally:
        for attention in attentions:
            del attention.__dict__["attend"]
    raise AdapterInvalid(
        f"A forward pass of this {kind} never comes to `attend` of the modules that the adapter {name} patches. "
        "Name the attention classes that it calls in `attention`, and call `attend` in their forward."
    )


def _stop(*_: Any, host: dict[str, Any], **__: Any) -> NoReturn:
    raise _Reached(host.get(KEYWORD) is not None)


def _refuse(happened: str) -> NoReturn:
    raise AdapterInvalid(f"{happened}. {EXAMPLE}; or replace what drops them in `swaps`, as patches/bloom.py does.")
