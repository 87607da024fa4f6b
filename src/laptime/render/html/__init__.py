"""Runs as HTML pages: sections of sentences, tables and figures, for a file or for the dashboard."""
