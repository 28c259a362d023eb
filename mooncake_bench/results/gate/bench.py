"""Files of pytest-benchmark as sides of a gate: each benchmark in the place of a policy.

Its clock is a wall clock, so a change counts only where a rank test over the raw timings tells both sides apart.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mooncake_bench import jsonfile
from mooncake_bench.errors import MissingRun, ResultError
from mooncake_bench.results.gate.judge import RANKED, Pair, Sample
from mooncake_bench.results.gate.rules import Declared

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

STATISTICS: Mapping[str, Declared] = {
    **{name: Declared(name, "s", "lower") for name in ("min", "max", "mean", "median", "q1", "q3")},
    "ops": Declared("ops", "1/s", "higher"),
}


class Benchmark(msgspec.Struct):
    """What is read of a benchmark; times are in s."""

    fullname: str
    stats: dict[str, Any]


class Machine(msgspec.Struct):
    """What is read of the machine and its Python."""

    machine: str = ""
    python_version: str = ""
    cpu: dict[str, Any] = {}


class Document(msgspec.Struct):
    """What is read of a file."""

    machine_info: Machine
    benchmarks: list[Benchmark]


class Timings(NamedTuple):
    """A file: where it was measured, and the statistics of each benchmark."""

    name: str
    machine: str
    python: str
    samples: Mapping[str, Mapping[str, Sample]]


def is_benchmark(path: Path) -> bool:
    """Whether a file is pytest-benchmark's, as far as its outermost keys say."""
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        head = json.loads(path.read_bytes().decode("utf-8-sig"))  # leniently: what is wrong inside is said on reading
    except (ValueError, RecursionError, OSError):
        return False
    return isinstance(head, dict) and "benchmarks" in head and "machine_info" in head


def read(path: Path) -> Timings:
    """A file of pytest-benchmark. Raises MissingRun where there is none, ResultError for one that is damaged."""
    try:
        document = msgspec.convert(jsonfile.load(path), Document)
    except FileNotFoundError:
        raise MissingRun(f"there is no file {str(path)!r}; make it with: pytest --benchmark-json {path}") from None
    except OSError as error:
        raise ResultError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise ResultError(f"{str(path)!r} is no file of pytest-benchmark: {error}") from None
    except ValueError as error:
        raise ResultError(f"{str(path)!r} cannot be judged: it holds what is no strict JSON ({error})") from None
    machine = document.machine_info
    where = " ".join(str(part) for part in (machine.cpu.get("brand_raw"), machine.machine) if part)
    samples = {each.fullname: _samples(each, str(path)) for each in document.benchmarks}
    return Timings(str(path), where, machine.python_version, samples)


def _samples(benchmark: Benchmark, name: str) -> dict[str, Sample]:
    raw = benchmark.stats.get("data") or []
    if not all(isinstance(value, int | float) for value in raw):
        raise ResultError(f"{name!r} is damaged: {benchmark.fullname}: the raw timings are not all numbers")
    times = tuple(float(value) for value in raw)
    rates = tuple(1 / value for value in times if value)
    return {
        known.name: Sample(_number(benchmark, known.name, name), rates if known.name == "ops" else times, known.unit)
        for known in STATISTICS.values()
        if known.name in benchmark.stats
    }


def _number(benchmark: Benchmark, key: str, name: str) -> float | None:
    value = benchmark.stats[key]
    if value is not None and not isinstance(value, int | float):
        raise ResultError(f"{name!r} is damaged: {benchmark.fullname}: {key} is {value!r}, no number")
    return value


def check_comparable(base: Timings, new: Timings, *, force: bool) -> list[str]:
    """Notices about where both were measured. Raises ResultError for different machines without ``force``."""
    if base.machine != new.machine and not force:
        raise ResultError(
            f"BASE and NEW are not comparable: measured on different machines ({base.machine or 'unknown'} and "
            f"{new.machine or 'unknown'}) (--force compares anyway)"
        )
    return list(_remarks(base, new))


def _remarks(base: Timings, new: Timings) -> Iterator[str]:
    if base.machine != new.machine:
        yield f"forced: measured on different machines ({base.machine} and {new.machine})"
    if base.python != new.python:
        yield f"Python differs between BASE and NEW: {base.python} and {new.python}"
    without = [each.name for each in (base, new) if not all(_has_timings(one) for one in each.samples.values())]
    if without:
        yield f"{', '.join(without)}: no raw timings; save them with --benchmark-json or --benchmark-save-data"


def _has_timings(statistics: Mapping[str, Sample]) -> bool:
    return all(sample.each for sample in statistics.values())


def pairs_of(base: Timings | None, new: Timings) -> list[Pair]:
    """Every benchmark of either file, those of BASE first."""
    ours: Mapping[str, Mapping[str, Sample]] = {} if base is None else base.samples
    names = dict.fromkeys([*ours, *new.samples])
    return [Pair(name, ours.get(name), new.samples.get(name), RANKED) for name in names]
