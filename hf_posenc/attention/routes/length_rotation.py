"""Length-dependent rotation (dynamic NTK): keys are cached unrotated and rotated for the length of each query.

Queries of equal length share a rotation, so a call is split into runs of equal length. The kernel computes the runs if
it supports the call; otherwise each run is an ordinary call. With left padding, samples may have different lengths at
the same index; then they are computed one by one.

A graph for any length cannot group its queries by length, because lengths depend on the values of positions. There
every query has its own frequencies, and the rotation is a content bias:

    score[i, j] = Σ_m a_m cos(θ_m) + b_m sin(θ_m)        θ_m = (i − j) ω_m(L_i)
                = q_i · k_j + Σ_m a_m (cos(θ_m) − 1) + b_m sin(θ_m)

a_m and b_m are the inner and the outer product of pair m of a raw query and of a raw key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import by_device
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes import dense_blocks, length_rotation_rows
from hf_posenc.attention.routes.band_cuts import first_key, one_start
from hf_posenc.attention.routes.length_rotation_runs import RotatedRuns, length_runs, table_from
from hf_posenc.core.constants import HALF
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.grouped_heads import attend_packed, products
from hf_posenc.core.rotation import Table, halves, memoized_by_columns, rotate, rotate_at_once, table
from hf_posenc.core.terms import Bias, Block, BlockBias, RowRotation
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import NotTraceable

ComputeAtLengths = Callable[[AttentionCall, Tensor], tuple[Tensor, ...]]  # of a call and the length at each query
TableOf = Callable[[slice], Table]  # of a slice of the cached keys


def accepts(call: AttentionCall) -> bool:
    """Whether the terms have a row rotation."""
    return call.terms.row_rotation is not None


def attend(call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``."""
    if is_traced():
        return dense_blocks.attend(rotation_as_bias(call))
    if is_alone(call) and by_device.usable(call.queries[0], call.keys[0], call.values):
        return by_sample(call, by_kernel)[0]
    return by_sample(call, partial(by_run, compute=lambda run: (dense_blocks.attend(run),)))[0]


def prepare(call: AttentionCall) -> Callable[[AttentionCall], Tensor]:
    """The function for calls like ``call``. The rotation of a decode query is computed here, once for all layers."""
    if call.rotated_keys is None or call.query_length > 1 or torch.is_grad_enabled() or is_traced():
        return attend
    if not is_alone(call) or (is_narrow(call) and call.values.dtype in HALF):
        return attend
    rows: RowRotation = call.terms.row_rotation  # type: ignore[assignment]
    ctx, length = call.ctx, int(rows.length_of(call.ctx.query_positions)[0, 0])  # equal in all samples, see is_alone
    rotation = rows.rotation_of(length)
    query_table, newest = table(rotation, ctx.query_positions), call.key_length - 1

    def key_table(columns: slice) -> Table:
        return query_table if columns.start == newest else table_of_keys(ctx, rotation, columns)

    return partial(_decode, length, rotation, query_table, memoized_by_columns(key_table), ctx.key_positions[:, 0])


def _decode(
    length: int, rotation: Rotation, query_table: Table, key_table: TableOf, first_position: Tensor, call: AttentionCall
) -> Tensor:
    def keys_in(columns: slice) -> Tensor:
        return rotate(call.keys[0][:, :, columns], rotation, key_table(columns))

    keys: Tensor = call.rotated_keys(length, first_position, keys_in)  # type: ignore[misc]
    query = rotate_at_once(call.queries[0], rotation.layout, query_table)
    if is_narrow(call):  # no kernel of the CPU computes these
        return dense_blocks.spread(products(query * call.scale, keys).softmax(-1), call.values)
    return attend_packed(query, keys, call.values, scale=call.scale)


def is_narrow(call: AttentionCall) -> bool:
    """Whether values have another width than keys."""
    return call.values.shape[-1] != call.queries[0].shape[-1]


def attend_with_weights(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Attention output and weights ``[batch, heads, query, key]``."""
    if is_traced():
        return dense_blocks.attend_with_weights(rotation_as_bias(call))
    out, weights = by_sample(call, partial(by_run, compute=dense_blocks.attend_with_weights))
    return out, weights


def is_alone(call: AttentionCall) -> bool:
    """Whether the rotation is the only term, and positions are contiguous with the same start in all samples."""
    return call.is_unmasked_suffix and call.terms.only("row_rotation") and one_start(call)


def by_sample(call: AttentionCall, compute: ComputeAtLengths) -> tuple[Tensor, ...]:
    """Compute samples together where their queries have the same lengths, else one by one."""
    lengths = call.terms.row_rotation.length_of(call.ctx.query_positions)  # type: ignore[union-attr]
    if len(lengths) == 1 or bool((lengths == lengths[:1]).all()):
        return compute(call, lengths[0])
    samples = [compute(call.of_samples(slice(b, b + 1)), lengths[b]) for b in range(len(lengths))]
    return tuple(torch.cat(parts) for parts in zip(*samples, strict=True))


def by_kernel(call: AttentionCall, lengths: Tensor) -> tuple[Tensor, ...]:
    """Compute the runs of equal length with the kernel, or many short runs together."""
    scale, parts = call.scale, tuple(runs(lengths))
    if length_rotation_rows.is_faster(call, len(parts)):
        return (length_rotation_rows.attend(call, lengths),)
    rotations: RowRotation = call.terms.row_rotation  # type: ignore[assignment]
    make_runs = partial(
        length_runs, rotations, parts, first_key(call), call.first_query, call.key_length,
        causal=call.ctx.causal, device=call.values.device,
    )  # fmt: skip
    return (RotatedRuns.apply(make_runs, scale, call.queries[0], call.keys[0], call.values),)


def by_run(
    call: AttentionCall, lengths: Tensor, compute: Callable[[AttentionCall], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Compute each run of queries of equal length as a call of its own, and concatenate the results."""

    def of_run(rows: slice, length: int) -> tuple[Tensor, ...]:
        return compute(rotated_call(call, rows, length))

    if torch.is_grad_enabled() and call.queries[0].requires_grad:
        parts = [checkpoint(of_run, rows, length, use_reentrant=False) for rows, length in runs(lengths)]
    else:
        parts = [of_run(rows, length) for rows, length in runs(lengths)]
    return tuple(torch.cat(part, dim=2) for part in zip(*parts, strict=True))


def runs(lengths: Tensor) -> Iterator[tuple[slice, int]]:
    """Maximal slices of equal lengths, each with its length."""
    values, counts = torch.unique_consecutive(lengths, return_counts=True)
    start = 0
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        yield slice(start, start + count), value
        start += count


def rotated_call(call: AttentionCall, rows: slice, length: int) -> AttentionCall:
    """The call of some queries, with queries and keys rotated for their length."""
    rotations: RowRotation = call.terms.row_rotation  # type: ignore[assignment]
    rotation = rotations.rotation_of(length)
    query_positions, key_positions = call.ctx.query_positions[:, rows], call.ctx.key_positions

    def keys_in(columns: slice) -> Tensor:
        if call.rotated_keys is None:
            tables = table(rotation, key_positions[:, columns])
        else:  # in decoding, computed once for all layers
            make_table = partial(table_of_keys, call.ctx, rotation, columns)
            tables = call.ctx.once(("rotated keys", rotation, columns.start, columns.stop), make_table)
        return rotate(call.keys[0][:, :, columns], rotation, tables)

    row_scale = call.terms.row_scale
    rotated_keys, every = call.rotated_keys, slice(None)
    keys = keys_in(every) if rotated_keys is None else rotated_keys(length, key_positions[:, 0], keys_in)
    return replace(
        call,
        queries=(rotate(call.queries[0][:, :, rows], rotation, table(rotation, query_positions)),),
        keys=(keys,),
        terms=replace(
            call.terms,
            row_rotation=None,
            row_scale=None if row_scale is None else row_scale[..., rows],
            bias=tuple(with_call_rows(bias, rows.start) for bias in call.terms.bias),
        ),
        ctx=replace(call.ctx, query_positions=query_positions),
        mask=call.mask_of(rows),
        start=call.first_query + rows.start,
    )


def with_call_rows(bias: Bias, first: int) -> Bias:
    """A bias for the run that starts at query ``first`` of a call: `Block.rows` then counts the queries of the call."""
    if not isinstance(bias, BlockBias):
        return bias

    def of_block(block: Block) -> Tensor:
        start = first + (block.rows.start or 0)
        return bias.of_block(replace(block, rows=slice(start, start + block.query.shape[2])))

    return replace(bias, of_block=of_block, shifted=None)


def table_of_keys(ctx: PositionContext, rotation: Rotation, columns: slice) -> Table:
    """Cosine and sine table of the keys at some columns."""
    positions, first = ctx.key_positions[:, columns], ctx.first_key
    if first is None:
        return table(rotation, positions)
    return table_from(rotation, first + (columns.start or 0), positions.shape[1], positions.device)


def rotation_as_bias(call: AttentionCall) -> AttentionCall:
    """The call with its row rotation expressed as a bias.

    Raises:
        NotTraceable: the rotation has no `frequencies_of` for lengths in a tensor.
    """
    rows: RowRotation = call.terms.row_rotation  # type: ignore[assignment]
    if rows.frequencies_of is None:
        raise NotTraceable(
            "This rotation computes its frequencies from Python integers, and a traced graph has only tensors. "
            "Give its RowRotation frequencies_of, or run the model outside torch.compile, torch.export and jit.trace."
        )
    lengths = rows.length_of(call.ctx.query_positions)
    frequencies = rows.frequencies_of(lengths)
    if call.ctx.device.type == "mps":
        frequencies = frequencies.float()
    bias = BlockBias(partial(rotation_bias, rows.rotation_of(1), frequencies), reads_scores=False)
    return replace(call, terms=replace(call.terms, row_rotation=None, bias=(bias, *call.terms.bias)), rotated_keys=None)


def rotation_bias(rotation: Rotation, frequencies: Tensor, block: Block) -> Tensor:
    """Change of the scores of a block by the rotation, ``[batch, heads, n, key]``, float32.

    Args:
        rotation: defines which channels are a pair.
        frequencies: of every query of the call, ``[batch or 1, query, pairs]``.
        block: holds unrotated queries and keys.
    """
    channels = [half for x in (block.query, block.key) for half in halves(x[..., : rotation.dims], rotation.layout)]
    distance = block.distance.to(frequencies.dtype)
    total = torch.zeros_like(block.scores)
    for pair in range(frequencies.shape[-1]):
        angle = (distance * frequencies[:, block.rows, pair, None])[:, None]
        qa, qb, ka, kb = (half[..., pair : pair + 1] for half in channels)
        inner = products(torch.cat((qa, qb), -1), torch.cat((ka, kb), -1))
        outer = products(torch.cat((qb, -qa), -1), torch.cat((ka, kb), -1))
        total = total - inner * (2 * (angle / 2).sin() ** 2).float() - outer * angle.sin().float()
    return total * block.scaling


ROUTE = Route("length_rotation", accepts, prepare)
