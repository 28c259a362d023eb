"""What moving KVCache costs: copies, TCP and Mooncake's transfer engine, timed with real data that is then checked."""
