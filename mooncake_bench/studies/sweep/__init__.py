"""A sweep: the same trace under every combination of some settings, replayed in parallel, kept in one dataset."""
