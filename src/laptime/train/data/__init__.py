"""Data to train on: one module per source; `zener` draws its own."""
