"""`python -m laptime`: the same as `laptime`."""

from laptime.cli import main

main()
