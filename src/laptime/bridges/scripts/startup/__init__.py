"""A folder that `laptime run` puts on the PYTHONPATH of a script's child processes."""
