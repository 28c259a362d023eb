"""Policies that write down all they see at every call, so that two engines can be held to the same views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.api import Admission, Policy, Router

if TYPE_CHECKING:
    from collections.abc import Collection

PER_INSTANCE = ("queue_ms", "queue_requests", "decode_batch", "decode_tokens", "routed_tokens")
STATES = ("joined", "waiting", "promised")
HOOKS = ("route", "order", "late_decode", "reject", "reject_prefill", "reject_decode", "on_event")


def snapshot(cluster, request=None) -> dict[str, Any]:
    """Everything in the view, as plain values; requests of one state are in no particular order."""
    seen: dict[str, Any] = {name: getattr(cluster, name).tolist() for name in PER_INSTANCE}
    for state in STATES:
        seen[state] = sorted(zip(*(column.tolist() for column in getattr(cluster, state)), strict=True))
    if request is not None:
        seen["cached"] = cluster.cached_tokens(request).tolist()
        seen["fetchable"] = cluster.fetchable_tokens(request).tolist()
    return seen


def watch(policy: Policy, log: list[tuple[Any, ...]], also: Collection[str] = ()) -> None:
    """Let ``policy`` log (hook, subject, time, view, answer) whenever it is called.

    Hooks that its class leaves to the base class are watched where ``also`` names them: an engine that skips such
    hooks then calls them.
    """
    kind = type(policy)
    bases = [base for base in (Router, Admission) if isinstance(policy, base)]
    own = {
        name
        for name in HOOKS
        for base in bases
        if hasattr(base, name) and (name in also or getattr(kind, name) is not getattr(base, name))
    }
    policy.__class__ = type(kind.__name__, (kind,), {name: _watched(name, getattr(kind, name), log) for name in own})


def _watched(name: str, method: Any, log: list[tuple[Any, ...]]) -> Any:
    def hook(self, *args):
        *subject, cluster = args
        request = subject[0] if name != "order" and name != "on_event" else None
        if request is not None:
            subject = [request.row, *subject[1:]]
        elif name == "order":
            subject = [subject[0], *(request.row for request in subject[1])]
        seen = snapshot(cluster, request)
        answer = method(self, *args)
        log.append((name, tuple(subject), cluster.now_ms, seen, answer))
        return answer

    return hook
