"""Committing a verified block in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_lab.core.kernels.commit import reference
from dflash_lab.core.kernels.commit.reference import Committed
from dflash_lab.core.kernels.device import follow
from dflash_lab.core.kernels.launch import INTS, check_range, check_tensor, launch, tile

MAX_SLOTS, MAX_STOPS = 64, 64
"""Slots and stop tokens that one program compares, each with each."""
STOPPED, FULL = tl.constexpr(reference.STOPPED), tl.constexpr(reference.FULL)


@triton.jit
def _commit(
    block_ids, num_accepted, bonus_id, lengths, left, done, stop_ids, record,
    K, STOPS, K_TILE: tl.constexpr, S_TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    b = tl.program_id(0)
    k = tl.arange(0, K_TILE)
    s = tl.arange(0, S_TILE)
    proposal = tl.load(block_ids + b * (K + 1) + 1 + k, mask=k < K, other=0)
    stops = tl.load(stop_ids + s, mask=s < STOPS, other=-1)
    accepted = tl.load(num_accepted + b).to(tl.int32)
    bonus = tl.load(bonus_id + b)
    over = tl.load(done + b)
    room = tl.load(left + b)
    length = tl.load(lengths + b)

    produced = tl.where(k == accepted, bonus, proposal)
    most = tl.maximum(tl.minimum(accepted + 1, room), 0)
    stopping = tl.max((produced[:, None] == stops[None, :]).to(tl.int32), axis=1) > 0
    through = tl.min(tl.where(stopping & (k < most), k + 1, K + 2), axis=0)
    kept = tl.where(over == 0, tl.minimum(most, through), 0)
    last = tl.sum(tl.where(k == kept - 1, produced, 0), axis=0)
    room -= kept
    reason = tl.where(through <= most, STOPPED, tl.where(room <= 0, FULL, 0))
    over = tl.where(over == 0, reason, over)
    tl.store(lengths + b, length + kept)
    tl.store(left + b, room)
    tl.store(done + b, over)
    tl.store(block_ids + b * (K + 1), last, mask=kept > 0)
    row = record + b * (K + 4)
    tl.store(row, accepted)
    tl.store(row + 1, bonus.to(tl.int32))
    tl.store(row + 2, kept)
    tl.store(row + 3, over)
    tl.store(row + 4 + k, proposal.to(tl.int32), mask=k < K)


def commit(
    block_ids: Tensor,
    num_accepted: Tensor,
    bonus_id: Tensor,
    lengths: Tensor,
    left: Tensor,
    done: Tensor,
    stop_ids: Tensor,
) -> Committed:
    """The reference's `commit` for blocks of up to 64 slots and up to 64 stop tokens. Raises BackendError.

    One program a request reads its block and stop_ids and writes its record, B * (12 * K + 8 * n) bytes.
    """
    batch, length = block_ids.shape
    check_range("commit: slots in a block", length, 1, MAX_SLOTS)
    check_range("commit: stop tokens", len(stop_ids), 0, MAX_STOPS)
    check_tensor("block_ids", block_ids, (batch, length), INTS)
    check_tensor("num_accepted", num_accepted, (batch,), INTS)
    check_tensor("bonus_id", bonus_id, (batch,), INTS)
    check_tensor("stop_ids", stop_ids, (len(stop_ids),), INTS)
    for name, tensor in (("lengths", lengths), ("left", left), ("done", done)):
        check_tensor(name, tensor, (batch,), (torch.int32,))
    record = torch.empty(batch, length + 3, dtype=torch.int32, device=block_ids.device)
    launch(
        _commit, (batch,), block_ids, num_accepted, bonus_id, lengths, left, done, stop_ids, record,
        length - 1, len(stop_ids), K_TILE=tile(length), S_TILE=tile(max(1, len(stop_ids))), num_warps=1,
    )  # fmt: skip
    return Committed(record, block_ids, lengths, left, done)
