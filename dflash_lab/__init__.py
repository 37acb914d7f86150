"""dflash-lab: decode with DFlash 2, keep every step, look at it."""

__version__ = "0.1.0"
