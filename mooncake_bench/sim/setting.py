"""How a field of the setup is declared: its dotted name, help, unit, parser and bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError
from mooncake_bench.sim.parsing import one_of

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Setting:
    """How one field of :class:`Setup` is named, read and explained."""

    dotted: str
    parse: Callable[[Any, str], Any]
    help: str
    unit: str = ""
    least: float | None = None  # smallest allowed value
    above: float | None = None  # the value must exceed this
    most: float | None = None  # largest allowed value
    unset: str = ""  # what None means
    choices: tuple[str, ...] = ()  # the only values, where there are few


def setting(default: Any, dotted: str, parse: Callable[[Any, str], Any], help: str, **more: Any) -> Any:  # noqa: A002
    """A field of the setup, declared."""
    return field(default=default, metadata={"setting": Setting(dotted, parse, help, **more)})


def choice(default: str, dotted: str, choices: tuple[str, ...], help: str) -> Any:  # noqa: A002
    """A field that takes one of a few words."""
    return setting(default, dotted, one_of(*choices), help, choices=choices)


def checked(declared: Setting, value: Any) -> Any:
    """A field's value, read and within its bounds. Raises SetupError."""
    parsed = declared.parse(value, declared.dotted)
    if declared.least is not None and parsed < declared.least:
        raise SetupError(f"{declared.dotted}: must be at least {declared.least:g}, got {value!r}")
    if declared.most is not None and parsed > declared.most:
        raise SetupError(f"{declared.dotted}: must be at most {declared.most:g}, got {value!r}")
    if declared.above is not None and parsed <= declared.above:
        raise SetupError(f"{declared.dotted}: must be above {declared.above:g}, got {value!r}")
    return parsed
