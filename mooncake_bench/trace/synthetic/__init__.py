"""Generators of traces from a few words: arrivals, lengths, what prompts share; presets; ServeGen clients; fits.

:mod:`recipe` puts a trace together, :mod:`presets` names the paper's own datasets, :mod:`servegen` samples client
files, :mod:`fit` makes a specification of an existing trace and :mod:`redraw` a trace from it.
"""
