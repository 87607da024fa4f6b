"""Predictions as typed views: of `laptime predict` or read from its files, for terminal and page."""
