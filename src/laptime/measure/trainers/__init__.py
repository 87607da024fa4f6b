"""Callbacks for other people's trainers: Lightning and transformers."""
