"""Runs, comparisons and predictions as text for a terminal."""
