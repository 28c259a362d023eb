"""What several tests of the gate share: rules, and stored files changed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mooncake_bench.results.gate.baseline import digest

HOSTILE = '<b>&|*%"x"\n::error::y\x1b[31m'
P99 = ("--fail-if", "p99_ttft_ms:2%")


def edit(path: Path, *, signed: bool = True, **changes: Any) -> None:
    """Change parts of a JSON file, named by keys joined with two underscores; a baseline is signed anew."""
    content = json.loads(path.read_text(encoding="utf-8-sig"))
    for name, value in changes.items():
        *outer, last = name.split("__")
        place = content
        for key in outer:
            place = place[key]
        place[last] = value
    if "sha256" in content and signed:
        content["sha256"] = digest(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def manifest(runs: Path, number: int) -> Path:
    (found,) = runs.glob(f"{number}_*/run.json")
    return found


def benchmark_file(name: str, cpu: str = "fast", **times: list[float]) -> str:
    """A file as pytest-benchmark writes it (its keys that matter)."""
    content = {
        "machine_info": {"machine": "x86_64", "python_version": "3.12.1", "cpu": {"brand_raw": cpu, "count": 2}},
        "commit_info": {"id": "0"},
        "benchmarks": [
            {
                "fullname": f"tests/test_speed.py::{test}",
                "stats": {"mean": sum(data) / len(data), "min": min(data), "ops": len(data) / sum(data), "data": data},
            }
            for test, data in times.items()
        ],
        "datetime": "2026-01-02T03:04:05.678+00:00",
        "version": "5.1.0",
    }
    Path(name).write_text(json.dumps(content), encoding="utf-8")
    return name


FAST = [1.00, 1.01, 1.02, 1.03, 1.04]
SLOW = [1.20, 1.21, 1.22, 1.23, 1.24]
