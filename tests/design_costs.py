"""The costs that the design's published oracles were made with: what tests of the simulator's rules keep to."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
NODE, ENGINE = str(DATA / "a800-design.toml"), str(DATA / "mooncake-a800-design.toml")
DESIGN = {"node": NODE, "engine": ENGINE}
"""Settings of a replay."""
