"""Runs for other programs: one file for each format, entered in `registry`; MLflow through its own client."""
