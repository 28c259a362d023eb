"""What a prefix cache gets out of a trace, without a cluster: online policies, exact curves and offline bounds."""
