"""What Girih raises, and what it warns of."""


class GirihError(RuntimeError):
    """Girih cannot do what was asked. The text says why, and what to do."""


class UnavailableError(GirihError):
    """What Girih needs is missing here. Programs go on without it, and a warning says so."""


class GirihWarning(UserWarning):
    """Girih works, with less than it could have, or not at all in a program that goes on."""
