"""A linear map for few rows: weights packed once for the processor they run on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS_HINT = 8
"""Rows the packing is laid out for: a draft block. Any number of rows works."""


class PackedLinear(nn.Module):
    """`x @ weight.T + bias` for `x [..., in]`.

    For a handful of rows in float32 the plain CPU path multiplies at a fraction of memory bandwidth; oneDNN's packed
    weights (the layout torch.compile uses) are three to four times faster. Elsewhere this is torch's linear.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.packed = can_pack(weight)
        self._bias = bias
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT) if self.packed else weight

    @property
    def weight(self) -> Tensor:
        """`[out, in]`, laid out plainly: a copy where it is packed."""
        return self._weight.to_dense() if self.packed else self._weight

    @property
    def bias(self) -> Tensor | None:
        """`[out]`."""
        return self._bias

    def forward(self, x: Tensor) -> Tensor:
        if not self.packed:
            return F.linear(x, self._weight, self._bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


def can_pack(weight: Tensor) -> bool:
    """Whether packed weights exist for this tensor: float32 on a CPU that torch has oneDNN for."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def pack_linears(module: nn.Module) -> None:
    """Replace every `nn.Linear` below `module` by its packed form, for inference; nothing where none exists."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and can_pack(child.weight):
            setattr(module, name, PackedLinear(child.weight, child.bias))
        else:
            pack_linears(child)
