"""What Girih raises, and what it warns of."""


class GirihError(RuntimeError):
    """Girih cannot do what was asked. The text says why, and what to do."""


class GirihWarning(UserWarning):
    """Girih works, with less than it could have, or not at all in a program that goes on."""
