"""Measure how well sampling settings fit a language model, on real text, all settings at once."""
