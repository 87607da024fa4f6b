"""Comparisons as typed values: two sides, several runs beside a baseline, a run beside its prediction."""
