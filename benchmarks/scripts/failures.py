"""Why a script could not be run; told in one line."""


class NotFetched(Exception):
    """The repository of a script is not there."""


class Edited(Exception):
    """The script is not as its repository has it."""
