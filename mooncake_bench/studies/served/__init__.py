"""Engine overheads from a served log: read it, serve it again step by step, fit on one half, predict the other."""
