"""Fit the links of ``mooncake_bench/hardware/presets/links.toml`` to public measurements.

    python tools/derive_links.py MEASUREMENTS            print the fits and their errors
    python tools/derive_links.py MEASUREMENTS --write    write the file

MEASUREMENTS is the folder of measurements that its own README describes. Each measured link is latency + bytes /
bandwidth, robust on relative residuals; its error is that of points left out of the fit, one size (or one octave of
sizes) at a time. Bandwidths that were published without times keep their latency unknown; line rates are a datasheet's.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.optimize import least_squares

KV_70B = 327_680  # bytes a token of a 70B model, 2 x 80 x 8 x 128 x 2
OUT = Path(__file__).resolve().parent.parent / "mooncake_bench" / "hardware" / "presets" / "links.toml"
HEAD = """# Links: (E4) a transfer takes latency_ms + bytes / bandwidth (gbytes_per_s, 1e9 bytes/s, one direction).
# Made by `python tools/derive_links.py MEASUREMENTS --write`; error: of sizes left out of the fit (median/p90).
# No latency_ms: the source has bandwidths only.
"""
FIG12 = "FAST'25 Fig 12, digitised: 1 to 100 GB"


@dataclass(frozen=True)
class Measured:
    """Points of one link: (R,) bytes and milliseconds."""

    name: str
    kind: str
    description: str
    source: str
    transferred: Any
    ms: Any


def fit(transferred: Any, ms: Any) -> tuple[float, float]:
    """Latency [ms] and bandwidth [GB/s]."""
    fastest = float((transferred / ms / 1e6).max())

    def residual(x: Any) -> Any:
        return (x[0] + transferred / x[1] / 1e6) / ms - 1

    starts = ([part * float(ms.min()), fastest] for part in (0.0, 0.3, 0.9))
    scale = [float(ms.min()), fastest]
    found = [
        least_squares(residual, x, bounds=([0, 1e-6], np.inf), loss="soft_l1", f_scale=0.03, x_scale=scale)
        for x in starts
    ]
    best = min(found, key=lambda each: each.cost)
    return float(best.x[0]), float(best.x[1])


def left_out(transferred: Any, ms: Any) -> Any:
    """Relative errors [%] of every point, predicted without the points of its size (or octave, if sizes are many)."""
    groups = transferred if len(set(transferred.tolist())) <= 20 else np.floor(np.log2(transferred))
    errors = np.empty(len(ms))
    for group in np.unique(groups):
        out = groups == group
        latency, bandwidth = fit(transferred[~out], ms[~out])
        errors[out] = 100 * np.abs((latency + transferred[out] / bandwidth / 1e6) / ms[out] - 1)
    return errors


def measured(folder: Path) -> list[Measured]:
    """Every link that was timed."""
    rows = list(csv.DictReader((folder / "mooncake" / "paper_figures_digitized.csv").open(encoding="utf-8")))
    links = [
        _fig12(rows, "4x200Gbps", "TransferEngine", "fast25-4x200", "4 x 200 Gb/s RDMA (100 GB/s), transfer engine"),
        _fig12(rows, "8x400Gbps", "TransferEngine", "fast25-8x400", "8 x 400 Gb/s RDMA (400 GB/s), transfer engine"),
        _fig12(rows, "4x200Gbps", "TCP", "fast25-4x200-tcp", "4 x 200 Gb/s, TCP"),
        _fig12(rows, "8x400Gbps", "TCP", "fast25-8x400-tcp", "8 x 400 Gb/s, TCP"),
    ]
    served = list(csv.DictReader((folder / "mooncake" / "h800_qwen3-8b_tp8_vllm_pd_rdma.csv").open(encoding="utf-8")))
    links.append(
        Measured(
            "h800-8xcx7",
            "network",
            "8 x ConnectX-7 (RoCE) of an H800 node, vLLM's Mooncake connector",
            "Mooncake's vLLM v1 disaggregation benchmark, Qwen3-8B, 19 MB to 4.8 GB",
            *_columns(served, "kv_bytes_computed", "kv_transfer_ms"),
        )
    )
    loads = [row for row in rows if row["figure"] == "FAST25_fig14" and row["series"] == "load"]
    links.append(
        Measured(
            "a800-h2d",
            "pcie",
            "DRAM to the 8 A800 of a node (FAST'25 Table 1: 128 GB/s)",
            "FAST'25 Fig 14's loading bars, digitised: 8,192 to 131,072 tokens of 320 KiB",
            np.array([float(row["x"]) * KV_70B for row in loads]),
            np.array([float(row["value"]) * 1e3 for row in loads]),
        )
    )
    return links + _nvlink(folder)


def _fig12(rows: list[dict[str, str]], setting: str, series: str, name: str, text: str) -> Measured:
    chosen = [
        r for r in rows if (r["figure"], r["setting"], r["series"]) == ("FAST25_fig12", setting, f"{series}_latency_s")
    ]
    gigabytes, seconds = _columns(chosen, "x", "value")
    return Measured(name, "network", text, FIG12, gigabytes * 1e9, seconds * 1e3)


def _nvlink(folder: Path) -> list[Measured]:
    """One GPU to a neighbour, from 1 MB on: below, times are a few microseconds of a clock that counts whole ones."""
    table = pq.read_table(folder / "vidur" / "send_recv.parquet").to_pylist()
    links = []
    for gpu, line in (("a100", 300), ("h100", 450)):
        rows = [
            row
            for row in table
            if row["network"] == f"{gpu}_dgx" and row["devices_per_node"] == 2 and row["size"] >= 1e6
        ]
        ms, size = "time_stats.send_recv.median", "size"
        text = f"NVLink, one {gpu.upper()} to another ({line} GB/s)"
        source = f"Vidur's send_recv table, {gpu}_dgx, 1 to 67 MB"
        links.append(Measured(f"{gpu}-nvlink", "nvlink", text, source, *_columns(rows, size, ms)))
    return links


def _columns(rows: list[Any], *names: str) -> list[Any]:
    return [np.array([float(row[name]) for row in rows]) for name in names]


def _untimed() -> list[dict[str, Any]]:
    """Links whose source has a bandwidth and no times."""
    found = []
    efa = "Mooncake's EFA transport document, GPU to GPU, best of its sweep over blocks, threads and batches"
    for machine, gpu, write, read, points in (("p5", "H100", 388.90, 381.64, 5), ("p5en", "H200", 365.66, 303.78, 6)):
        nics = "32 x 100" if machine == "p5" else "16 x 200"
        for way, bandwidth in (("write", write), ("read", read)):
            text = f"AWS {machine}.48xlarge, {nics} Gb/s EFA (400 GB/s), {gpu}, {way}"
            error = "best bandwidth of a sweep, no single transfer was timed"
            found.append(_untimed_link(f"aws-{machine}-{way}", "network", text, bandwidth, efa, error, points))
    found.append(
        _untimed_link(
            "h100-h2d",
            "pcie",
            "DRAM to 8 H100 or H200 at once, PCIe 5",
            512.0,
            "line rate, 8 x 64 GB/s",
            "not measured; on the A800 node 102 GB/s of 128 GB/s were",
            0,
        )
    )
    found.append(
        _untimed_link(
            "nvme-5x-raid0",
            "ssd",
            "five NVMe disks striped",
            27.0,
            "Mooncake's documentation, a theoretical figure",
            "not measured; no measured curve of a KVCache on SSD was found",
            0,
        )
    )
    return found


def _untimed_link(
    name: str, kind: str, description: str, gbytes_per_s: float, source: str, error: str, points: int
) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "description": description,
        "gbytes_per_s": gbytes_per_s,
        "status": "measured" if points else "datasheet",
        "source": source,
        "error": error,
        "points": points,
    }


def entries(folder: Path) -> list[dict[str, Any]]:
    """Every link as the file has it."""
    found = []
    for link in measured(folder):
        latency, bandwidth = fit(link.transferred, link.ms)
        errors = left_out(link.transferred, link.ms)
        middle, high, worst = np.median(errors), np.quantile(errors, 0.9), errors.max()
        found.append(
            {
                "name": link.name,
                "kind": link.kind,
                "description": link.description,
                "latency_ms": float(f"{latency:.4g}"),
                "gbytes_per_s": float(f"{bandwidth:.4g}"),
                "status": "measured",
                "source": link.source,
                "error": f"sizes left out of the fit are off by {middle:.1f}/{high:.1f} % (median/p90), "
                f"at worst {worst:.0f} %",
                "points": len(link.ms),
            }
        )
    return found + _untimed()


def toml(found: list[dict[str, Any]]) -> str:
    """The file's text."""
    text = HEAD
    for entry in found:
        text += f"\n[{entry['name']}]\n"
        for key, value in entry.items():
            if key != "name":
                text += f'{key} = "{value}"\n' if isinstance(value, str) else f"{key} = {value!r}\n"
    return text


def main() -> None:
    """Print, or with --write replace, the links."""
    if len(sys.argv) not in (2, 3) or (len(sys.argv) == 3 and sys.argv[2] != "--write"):
        sys.exit("usage: python tools/derive_links.py MEASUREMENTS [--write]")
    text = toml(entries(Path(sys.argv[1])))
    if sys.argv[-1] == "--write":
        OUT.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
