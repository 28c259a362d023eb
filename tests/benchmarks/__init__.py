"""Tests of speed and memory: `pytest -m benchmark tests/benchmarks`."""
