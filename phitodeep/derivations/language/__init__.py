"""Derivations as data: their steps, their formulas, how they run, where each cell comes from."""
