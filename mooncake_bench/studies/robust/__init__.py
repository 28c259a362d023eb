"""Whether a conclusion survives: the same policies again, where what nobody knows exactly is a little other."""
