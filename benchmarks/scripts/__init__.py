"""Public training scripts, unedited, run bare and through `laptime run` on made-up data."""
