"""The parts of ``tools/derive_presets.py``: kernel sums, fits, the file of nodes, error tables, the cause of a jump."""
