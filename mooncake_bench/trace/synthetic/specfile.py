"""A specification as a TOML file: written, and read back with every value checked."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import outfile
from mooncake_bench.errors import TraceError
from mooncake_bench.trace.schema import MAX_SPAN_MS, MAX_TOKENS
from mooncake_bench.trace.synthetic.fitted import (
    CLASSES,
    KINDS,
    VERSION,
    ArrivalCurve,
    Continuations,
    Openings,
    Spec,
)
from mooncake_bench.trace.synthetic.tables import Binned, binned_from, plain, table_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FORMAT = "mooncake-bench generator"
MOST_REQUESTS, MOST_WINDOWS, MOST_OPENING_BLOCKS = 100_000_000, 1_000_000, 10_000_000
MOST_BYTES = 64 * 2**20
HEADER = """\
# What a request trace is like: counts, shares and rounded quantiles, no request of it.
# A trace of this kind: mooncake-bench traces synth OUT --from THIS_FILE --seed N
# Tables are quantile functions at fixed probabilities, in one row for each bin of another quantity between `edges`.
"""


def check_target(path: str | Path, force: bool = False) -> None:
    """Raises TraceError where :func:`write` would refuse a path for certain."""
    if Path(path).suffix != ".toml":
        raise TraceError(f"{str(path)!r}: expected a name that ends in .toml")
    outfile.check_target(path, force=force, label=repr(str(path)), error=TraceError)


def write(spec: Spec, path: str | Path, force: bool = False) -> None:
    """Write a specification; nothing half-written is left. Raises TraceError for a file that cannot be written."""
    check_target(path, force)
    with outfile.writing(path, force=force, label=repr(str(path)), error=TraceError) as partial:
        partial.write_text(HEADER + "\n".join(_toml(_plain(spec))) + "\n", encoding="utf-8")


def read(path: str | Path) -> Spec:
    """The specification in a file. Raises TraceError, one line, for anything else."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        found = tomllib.loads(data[:MOST_BYTES].decode("utf-8"))
    except OSError as error:
        raise TraceError(f"--from {str(path)!r} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"--from {str(path)!r} is not TOML: {' '.join(str(error).split())[:200]}") from None
    if found.get("format") != FORMAT or found.get("version") != VERSION:
        raise TraceError(
            f"--from {str(path)!r}: expected format = {FORMAT!r}, version = {VERSION}, as `traces fit` writes it; "
            f"found {found.get('format')!r}, {found.get('version')!r}"
        )
    return _Reader(str(path)).spec(found)


def _plain(spec: Spec) -> dict[str, Any]:
    curve, openings, going_on = spec.arrivals, spec.openings, spec.continuations
    found: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "block_tokens": spec.block_tokens,
        "prefix_ids": spec.prefix_ids,
        "longest_tokens": spec.longest_tokens,
        "arrivals": vars(curve) | {"counts": list(curve.counts)},
        "output_tokens": plain(spec.output_tokens),
        "own_tokens": [plain(table) for table in spec.own_tokens],
        "openings": {key: list(value) if isinstance(value, tuple) else value for key, value in vars(openings).items()},
    }
    if going_on is None:
        return found
    listed: dict[str, Any] = {name: _listed(value) for name, value in vars(going_on).items()}
    listed["lag_ms"] = dict(zip(KINDS, listed["lag_ms"], strict=True))
    return found | {"continuations": listed}


def _listed(value: Any) -> Any:
    if isinstance(value, Binned):
        return plain(value)
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def _toml(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Lines of TOML: plain values first, then the tables within."""
    inner = {key: value for key, value in values.items() if isinstance(value, dict) or _is_tables(value)}
    for key, value in values.items():
        if key not in inner:
            yield f"{key} = {_value(value)}"
    for key, value in inner.items():
        name = f"{path}{key}"
        for table in [value] if isinstance(value, dict) else value:
            yield f"\n[{name}]" if isinstance(value, dict) else f"\n[[{name}]]"
            yield from _toml(table, f"{name}.")


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)


class _Reader:
    """Builds a specification from TOML's values; an error names the file and the key."""

    def __init__(self, path: str) -> None:
        self.path = path

    def error(self, key: str, why: str) -> TraceError:
        return TraceError(f"--from {self.path!r}, {key}: {why}; fit it again")

    def get(self, values: Any, key: str, build: Callable[[Any], Any]) -> Any:
        """One value, built and checked by a function that raises ValueError."""
        name = key.rpartition(".")[2]
        if not isinstance(values, dict) or name not in values:
            raise self.error(key, "missing")
        try:
            return build(values[name])
        except KeyError as error:
            raise self.error(key, f"{error.args[0]} is missing") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise self.error(key, " ".join(str(error).split())[:200]) from None

    def spec(self, found: dict[str, Any]) -> Spec:
        openings = self.openings(found.get("openings"))
        tables = self.get(found, "own_tokens", _each(table_from, len(openings.blocks) + 1))
        return Spec(
            block_tokens=self.get(found, "block_tokens", _whole(1, MAX_TOKENS)),
            prefix_ids=self.get(found, "prefix_ids", _truth),
            longest_tokens=self.get(found, "longest_tokens", _whole(1, MAX_TOKENS)),
            arrivals=self.arrivals(found.get("arrivals")),
            output_tokens=self.get(found, "output_tokens", binned_from),
            own_tokens=tables,
            openings=openings,
            continuations=self.continuations(found["continuations"]) if "continuations" in found else None,
        )

    def arrivals(self, values: Any) -> ArrivalCurve:
        counts = self.get(values, "arrivals.counts", _each(_whole(0, MOST_REQUESTS)))
        if not 1 <= len(counts) <= MOST_WINDOWS or not 1 <= sum(counts) <= MOST_REQUESTS:
            raise self.error("arrivals.counts", f"expected from 1 to {MOST_REQUESTS:,} requests in all")
        window, span, burst, cv, grid = (
            self.get(values, f"arrivals.{name}", _number(low, high))
            for name, low, high in (
                ("window_ms", 1e-6, MAX_SPAN_MS),
                ("span_ms", 1e-6, MAX_SPAN_MS),
                ("burst_ms", 1e-6, MAX_SPAN_MS),
                ("burst_cv", 0, 1000),
                ("grid_ms", 0, MAX_SPAN_MS),
            )
        )
        if not 1 <= round(window / burst) <= MOST_WINDOWS:
            raise self.error("arrivals.burst_ms", "expected a part of window_ms")
        return ArrivalCurve(window, counts, span, burst, cv, grid)

    def openings(self, values: Any) -> Openings:
        blocks = self.get(values, "openings.blocks", _each(_whole(1, MOST_OPENING_BLOCKS)))
        requests, continued, like_blocks = (
            self.get(values, f"openings.{name}", _each(_whole(0, MOST_REQUESTS), len(blocks)))
            for name in ("requests", "continued", "like_blocks")
        )
        like = self.get(values, "openings.like", _each(_whole(-1, max(0, len(blocks) - 1)), len(blocks)))
        for at, (other, common) in enumerate(zip(like, like_blocks, strict=True)):
            if other >= at or (common and (other < 0 or common > min(blocks[at], blocks[other]))):
                raise self.error("openings.like", "expected an earlier opening, and no more blocks than both have")
        without, rest = (
            self.get(values, f"openings.{name}", _whole(0, MOST_REQUESTS)) for name in ("without", "without_continued")
        )
        if not without + sum(requests):
            raise self.error("openings.without", "no request continues nobody; expected at least one")
        return Openings(blocks, requests, continued, like, like_blocks, without, rest)

    def lags(self, values: Any) -> tuple[tuple[Binned, ...], ...]:
        by_kind = self.get(values, "continuations.lag_ms", dict)
        return tuple(self.get(by_kind, f"continuations.lag_ms.{kind}", _each(binned_from, CLASSES)) for kind in KINDS)

    def continuations(self, values: Any) -> Continuations:
        shares = _each(_number(0, 1))
        found = {
            "share": self.get(values, "continuations.share", shares),
            "classes": self.get(values, "continuations.classes", _each(_each(_number(0, 1), CLASSES))),
            "kinds": self.get(values, "continuations.kinds", _each(_each(_number(0, 1), len(KINDS)), CLASSES)),
            "lag_ms": self.lags(values),
            "parent_tokens": self.get(values, "continuations.parent_tokens", _each(binned_from, len(KINDS))),
        }
        if not found["share"] or not found["classes"]:
            raise self.error("continuations.share", "expected a number for each part of the trace")
        for name in ("growth_tokens", "kept_per_mille", "rewritten_per_mille"):
            found[name] = self.get(values, f"continuations.{name}", binned_from)
        return Continuations(**found)


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"found {str(value)[:40]}; expected a whole number from {low:,} to {high:,}")
        return value

    return check


def _number(low: float, high: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
        if not good or not low <= value <= high:
            raise ValueError(f"found {str(value)[:40]}; expected a number from {low:g} to {high:g}")
        return float(value)

    return check


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"found {str(value)[:40]}; expected true or false")
    return value


def _each(build: Callable[[Any], Any], count: int | None = None) -> Callable[[Any], tuple[Any, ...]]:
    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or count not in (None, len(value)):
            raise ValueError(f"expected a list{'' if count is None else f' of {count}'}")
        return tuple(build(item) for item in value)

    return check
