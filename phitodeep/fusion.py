"""The old import path of `phitodeep.training.shortcuts`."""

from phitodeep.training.shortcuts import _REMEDY, FUSED, SWAPPED, check_pair, fused, swapped

__all__ = ["FUSED", "SWAPPED", "_REMEDY", "check_pair", "fused", "swapped"]
