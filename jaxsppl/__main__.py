"""Run the command line as ``python -m jaxsppl``."""

from jaxsppl.cli import program

if __name__ == "__main__":
    program()
