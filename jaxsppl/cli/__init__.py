"""The command line: commands parse, call the API, print, and return an exit code."""

from jaxsppl.cli.app import main

__all__ = ["main"]
