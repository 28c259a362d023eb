"""What things cost: presets of models, nodes and engines, the CostModel interface, an analytic and a fake one."""
