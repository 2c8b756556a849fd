"""Counts in words."""


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    Parameters
    ----------
    count : int
    noun : str
        In the singular, of those that take an s.

    Returns
    -------
    str
        For example ``"1 passage"`` or ``"1,200 passages"``.
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
