"""Failures, recoveries and changes of role that a setup asks for, such as ``600s:fail:prefill:3``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.sim.parsing import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTIONS = ("fail", "recover", "switch")
ROLES = {"prefill": "P", "decode": "D", "coupled": "M"}
FORM = "TIME:ACTION:ROLE:N such as 600s:fail:prefill:3"


class Event(NamedTuple):
    """Something that happens to one instance at a time of the replay."""

    time_ms: float
    action: str
    role: str  # as set up: prefill, decode or coupled
    number: int  # among the instances of that role, from 0

    @property
    def name(self) -> str:
        """``fail prefill 3``."""
        return f"{self.action} {self.role} {self.number}"


def event_list(value: Any, what: str) -> str | None:
    """Events as one text, in order of time. ``value``: a text joined by commas, or a list of texts."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise SetupError(f"{what}: expected {FORM}, or a list of these, got {value!r}")
    if any(not text.strip() for text in value):
        raise SetupError(f"{what}: an empty one; expected {FORM}")
    texts = [text.replace(" ", "") for part in value for text in part.split(",") if text.strip()]
    return ",".join(sorted(texts, key=lambda text: parse_event(text, what).time_ms)) or None


def parse_events(text: str | None) -> list[Event]:
    """The events of a setup in order of time; of one time, in the order given."""
    return [parse_event(part, "events") for part in text.split(",")] if text else []


def parse_event(text: str, what: str) -> Event:
    """One event. Raises SetupError for anything else."""
    parts = text.split(":")
    if len(parts) != 4 or not parts[3].isdecimal():
        raise SetupError(f"{what}: expected {FORM}, got {text!r}")
    time, action, role, number = parts
    for word, known, kind in ((action, ACTIONS, "action"), (role, tuple(ROLES), "role")):
        if word not in known:
            raise SetupError(
                f"{what}: {text!r} has an unknown {kind} {word!r}; known: {', '.join(known)}{nearest(word, known)}"
            )
    time_ms = parse_duration_ms(time, f"{what}: {text!r}")
    if time_ms < 0:
        raise SetupError(f"{what}: {text!r} would happen before the replay starts; give a time of 0 or more")
    return Event(time_ms, action, role, int(number))


def instance_of(event: Event, roles: Sequence[str]) -> int:
    """Its instance's id, where ``roles`` has one letter an instance. Raises SetupError when there is none."""
    there = [i for i, role in enumerate(roles) if role == ROLES[event.role]]
    if event.number >= len(there):
        has = f"{event.role} instances 0 to {len(there) - 1}" if there else f"no {event.role} instance"
        raise SetupError(f"events: {event.name}: the cluster has {has}")
    return there[event.number]


def check_events(events: Sequence[Event], roles: Sequence[str]) -> None:
    """Raises SetupError for what cannot happen: no such instance, no failure to recover from, nothing to become."""
    dead: set[int] = set()
    for event in events:
        instance = instance_of(event, roles)
        what = f"events: {event.name} at {event.time_ms:g} ms:"
        if event.action == "recover":
            if instance not in dead:
                raise SetupError(f"{what} it has not failed before; give a fail event of an earlier time, or drop this")
            dead.remove(instance)
            continue
        if instance in dead:
            raise SetupError(f"{what} it has failed before; let it recover first, or drop this")
        if event.action == "fail":
            dead.add(instance)
        elif event.role == "coupled" or "D" not in roles:
            raise SetupError(f"{what} only a cluster of P and D instances has two roles to switch between")
