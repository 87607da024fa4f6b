"""Workload x hardware -> time, memory, money and energy; and the error of that, evaluated."""
