"""How much load a cluster carries within its SLOs, and which is the smallest that carries a load."""
