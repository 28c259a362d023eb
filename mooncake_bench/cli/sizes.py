"""What a person writes, ``slo="ttft:10s"`` or ``pool="1TB"``, to the fields that the setup holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.sim.consistency import SSD_RATES
from mooncake_bench.sim.parsing import Size, parse_size, parse_slo
from mooncake_bench.sim.setup import Setup, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_bench.trace import Trace

# setup field -> its unit, also that of a bare number
SIZES = {"pool_blocks": "blocks", "ssd_blocks": "blocks", "vram_tokens": "tokens"}


SHORT = {
    "pool": "pool_blocks",
    "ssd": "ssd_blocks",
    "ssd_read": "ssd_read_gbytes_per_s",
    "ssd_write": "ssd_write_gbytes_per_s",
    "vram": "vram_tokens",
    "nic": "nic_gbytes_per_s",
    "nic_core": "nic_core_gbytes_per_s",
    "block_size": "block_tokens",
    "column": "columns",
    "start": "start_ms",
    "end": "end_ms",
    "warmup": "warmup_ms",
    "dram_rate": "dram_gbytes_per_s",
    "decode_load": "decode_load_gbytes_per_s",
    "slo_class": "slo_classes",
    "event": "events",
    "fault_requests": "faults_requests",
    "retries": "client_retries",
    "backoff": "client_backoff_ms",
    "backoff_factor": "client_backoff_factor",
    "jitter": "client_jitter",
    "loop": "client_loop",
    "think_speedup": "client_think_speedup",
    "patience": "client_patience_ms",
}


def setup_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Setup fields from keywords that may be named as the command line's options are, ``slo`` among them.

    Raises SetupError for an unknown name, and for a setting given under two names.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        meant = parse_slo(_text(value)) if name == "slo" else {SHORT.get(name, name): value}
        for key, one in meant.items():
            if key in found:
                raise SetupError(f"{name}: {key} is given twice; keep one")
            found[key] = one
    unknown = next((name for name in found if name not in settings()), None)
    if unknown is not None:
        known = [*settings(), "slo", *SHORT]
        raise SetupError(f"no setting {unknown!r}{nearest(unknown, known)}; known: {', '.join(known)}")
    return found


def _text(slo: Any) -> str:
    if not isinstance(slo, str):
        raise SetupError(f"slo: expected text such as 'ttft:30s,tbt:100ms', got {slo!r}")
    return slo


def without_sizes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Setup fields that mean something before the trace's block size is known."""
    return {name: value for name, value in values.items() if name not in SIZES and name not in SSD_RATES}


def resolve_sizes(values: Mapping[str, Any], block_tokens: int) -> dict[str, Any]:
    """Setup fields with each size that is text as a number. Raises SetupError for a bad one."""
    resolved = dict(values)
    for name, bare in SIZES.items():
        if isinstance(resolved.get(name), str):
            size = parse_size(resolved[name], bare, settings()[name].dotted)
            model = resolved.get("model", Setup.__dataclass_fields__["model"].default)
            resolved[name] = _count(name, size, block_tokens, model)
    return resolved


def check_warmup(setup: Setup, selected: Trace) -> None:
    """Raises SetupError where no request of the selected trace arrives after the warm-up."""
    last_ms = float(selected.arrival_ms[-1]) / setup.speedup
    if setup.warmup_ms > last_ms:
        raise SetupError(f"warmup: {setup.warmup_ms:g} ms leaves 0 requests, the last arrives at {last_ms:g} ms")


def _count(name: str, size: Size, block_tokens: int, model: str) -> int:
    """A size as whole blocks (the pool) or tokens (VRAM), rounded down. Raises SetupError when nothing is left."""
    dotted = settings()[name].dotted
    if size.unit == SIZES[name]:
        if size.amount != int(size.amount):
            raise SetupError(f"{dotted}: expected whole {size.unit}, got {size.amount:g}")
        return int(size.amount)
    tokens = size.amount * (block_tokens if size.unit == "blocks" else 1)
    if size.unit == "bytes":
        from mooncake_bench.hardware.presets import load_model

        tokens /= load_model(model).kv_bytes_per_token
    count = int(tokens // block_tokens if SIZES[name] == "blocks" else tokens)
    if count < 1:
        one = f"one block of {block_tokens} tokens" if SIZES[name] == "blocks" else "one token"
        raise SetupError(f"{dotted}: {size.amount:g} {size.unit} hold less than {one}; give more")
    return count
