"""Tables, plots and flags from finished files; never computes a score."""
