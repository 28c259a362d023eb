"""The same costs from real kernels: the only room that imports torch or a transfer engine."""
