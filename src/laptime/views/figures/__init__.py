"""Every picture of a run, each a function from numbers to a `Figure`. Nothing here reads a file."""
