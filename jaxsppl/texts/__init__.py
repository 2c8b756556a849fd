"""Text sources to passages: `prepare` writes a folder of them, `load_passages` reads it."""

from jaxsppl.texts.folder import Preparation, load_passages, read_preparation
from jaxsppl.texts.passages import Passage
from jaxsppl.texts.prepare import PrepareReport, prepare

__all__ = [
    "Passage",
    "Preparation",
    "PrepareReport",
    "load_passages",
    "prepare",
    "read_preparation",
]
