"""A paper's runs in one archive: what replays them again travels along, and whoever has it can see that it does."""
