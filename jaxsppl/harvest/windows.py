"""Windows over texts that are longer than a model's context: each token is scored once."""

from dataclasses import dataclass

from jaxsppl.harvest.protocol import PassageError


@dataclass(frozen=True)
class Window:
    """Tokens `begin` to `end` are sent; those from `first` on are scored."""

    begin: int
    first: int
    end: int


def windows(n_token: int, start: int, *, width: int, stride: int) -> list[Window]:
    """Cover the tokens from `start` on by windows that slide over the text.

    Parameters
    ----------
    n_token : int
        Tokens of the text.
    start : int
        First scored one.
    width : int
        Longest window.
    stride : int
        Tokens that each window scores, the first perhaps more and the last perhaps fewer.

    Returns
    -------
    list of Window
        Each begins as early as its width allows, so that every token has at least
        ``width - stride`` tokens before it, or all there are.

    Raises
    ------
    PassageError
        When the stride leaves no room for context.
    """
    if not 0 < stride < width:
        raise PassageError(
            f"a window has room for {max(width, 0)} tokens of this text, so a stride of {stride} "
            "leaves none for context; take a larger --window or a smaller --stride"
        )
    found: list[Window] = []
    first = start
    while first < n_token:
        end = min(n_token, max(width, first + stride) if not found else first + stride)
        found.append(Window(max(0, end - width), first, end))
        first = end
    return found
