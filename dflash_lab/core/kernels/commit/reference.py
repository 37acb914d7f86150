"""Committing a verified block on the device, in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

STOPPED, FULL = 1, 2
"""Why a request is done: a stop token was committed, or no token is left to commit."""


class Committed(NamedTuple):
    """What the host learns of a step, and the state that was changed."""

    record: Tensor
    """`[B, 4 + K]` int32: accepted, bonus token, tokens committed, done (afterwards), then the K proposals."""
    block_ids: Tensor
    """The argument; slot 0 holds the last token committed."""
    lengths: Tensor
    """The argument, greater by the tokens committed."""
    left: Tensor
    """The argument, less by the tokens committed."""
    done: Tensor
    """The argument; 0, STOPPED or FULL."""


def commit(
    block_ids: Tensor,
    num_accepted: Tensor,
    bonus_id: Tensor,
    lengths: Tensor,
    left: Tensor,
    done: Tensor,
    stop_ids: Tensor,
) -> Committed:
    """Commit the accepted proposals and the bonus token: at most `left`, up to the first stop token, none when done.

    block_ids `[B, K + 1]` int64, the anchor and K proposals; num_accepted, bonus_id `[B]` int64; lengths (tokens of
    context), left (tokens that may yet be committed) and done `[B]` int32; stop_ids `[n]` int64, n may be 0. All but
    the verdict and stop_ids is changed in place. A last token that is a stop token counts as STOPPED.
    """
    slots = torch.arange(block_ids.shape[1], device=block_ids.device)
    proposal = block_ids[:, 1:]
    following = torch.cat((proposal, bonus_id[:, None]), dim=1)
    produced = torch.where(slots == num_accepted[:, None], bonus_id[:, None], following)
    most = torch.minimum(num_accepted.int() + 1, left).clamp(min=0)
    stops = (produced[..., None] == stop_ids).any(-1) & (slots < most[:, None])
    through = torch.where(stops, slots + 1, block_ids.shape[1] + 1).amin(1).int()
    kept = torch.where(done == 0, torch.minimum(most, through), 0)
    last = produced.gather(1, (kept.long() - 1).clamp(min=0)[:, None])[:, 0]
    lengths += kept
    left -= kept
    done += torch.where(done == 0, torch.where(stops.any(1), STOPPED, torch.where(left <= 0, FULL, 0)), 0).int()
    record = torch.cat((torch.stack((num_accepted, bonus_id, kept, done), dim=1), proposal), dim=1).int()
    block_ids[:, 0] = torch.where(kept > 0, last, block_ids[:, 0])
    return Committed(record, block_ids, lengths, left, done)
