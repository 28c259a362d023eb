"""What in a setup contradicts itself, or would have no effect beside the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError
from mooncake_bench.sim.events import check_events, parse_events

if TYPE_CHECKING:
    from mooncake_bench.sim.setup import Setup

COUPLED = ("schedule", "step_tokens", "sequences", "prefix_cache")  # of no effect without coupled instances
DECODING = ("decode_load_gbytes_per_s", "decode_preemption", "decode_inline")
STAGES = ("prefill_group", "prefill_chunk", "prefill_layers", "dram_gbytes_per_s", *DECODING)
SSD_RATES = ("ssd_read_gbytes_per_s", "ssd_write_gbytes_per_s")  # of no effect without ssd.blocks
UNCOUPLED = (
    "pool_blocks", "pool_scope", "nic_gbytes_per_s", "nic_core_gbytes_per_s", "ssd_blocks", *SSD_RATES
)  # fmt: skip  # of no effect on them
NETWORK = ("nic_core_gbytes_per_s", "nic_gbytes_per_s")  # of no effect where nothing is sent
MOST_BACKOFF_DAYS = 30  # of a client in all; a replay's clock holds 107
RETRIES = ("client_backoff_ms", "client_backoff_factor", "client_jitter")  # of no effect without client.retries
_IDLE_ON = {
    True: "a coupled instance's cache is what its VRAM leaves, and nothing is sent; see vram.tokens, or drop it",
    False: "it has no coupled instance; give one such as 16M, or drop it",
}


def check(setup: Setup) -> None:
    """Raises SetupError for the first thing that does not go together."""
    roles = [role for role, _ in setup.instances]
    _check_events(setup, roles)
    _check_clients(setup)
    _check_coupled(setup, coupled="M" in roles)
    _check_prefill(setup, roles)
    _check_tiers(setup, roles)
    if setup.start_ms is not None and setup.end_ms is not None and setup.start_ms >= setup.end_ms:
        raise SetupError(f"trace.end_ms: {setup.end_ms:g} must be above trace.start_ms {setup.start_ms:g}")


def _check_clients(setup: Setup) -> None:
    _check_backoff(setup)
    idle = next((name for name in RETRIES if getattr(setup, name) != _default(setup, name)), None)
    if idle is not None and not setup.client_retries:
        raise SetupError(f"{_dotted(setup, idle)}: no effect without client.retries; give that, or drop this")
    if setup.client_think_speedup != 1 and setup.client_loop != "closed":
        raise SetupError("client.think_speedup: no effect without client.loop = closed; give that, or drop this")


def _check_backoff(setup: Setup) -> None:
    """All that a client may wait between its attempts has to fit on the clock of a replay, beside its trace."""
    most_ms = MOST_BACKOFF_DAYS * 86_400_000
    if setup.client_patience_ms is not None and setup.client_patience_ms < most_ms:
        return  # it gives up before
    wait_ms, total_ms = setup.client_backoff_ms * (1 + setup.client_jitter), 0.0
    for attempt in range(setup.client_retries):
        total_ms += wait_ms
        if total_ms >= most_ms:
            raise SetupError(
                f"client.retries: {setup.client_retries} would wait {MOST_BACKOFF_DAYS} days in all by retry "
                f"{attempt + 1}; expected less; give a lower client.retries, client.backoff_ms or client.backoff_factor"
            )
        wait_ms *= setup.client_backoff_factor


def check_scope(setup: Setup, *, elastic: bool) -> None:
    """Raises SetupError where only one instance ever prefills, so that it does not matter who may fetch.

    ``elastic``: a policy or an event may let others prefill.
    """
    if setup.pool_scope == "local" and not elastic and [role for role, _ in setup.instances].count("P") == 1:
        how = "one prefill instance has no other to fetch from; drop it"
        raise SetupError(f"pool.scope: no effect on cluster {setup.cluster}: {how}")


def _check_events(setup: Setup, roles: list[str]) -> None:
    events = parse_events(setup.events)
    check_events(events, roles)
    if setup.faults_requests != "retry" and not any(event.action == "fail" for event in events):
        raise SetupError("faults.requests: no effect without a fail event; add --event, or drop this")


def _check_tiers(setup: Setup, roles: list[str]) -> None:
    idle = next((name for name in SSD_RATES if getattr(setup, name) != _default(setup, name)), None)
    if idle is not None and setup.ssd_blocks is None:
        raise SetupError(f"{_dotted(setup, idle)}: no effect without ssd.blocks; give that, or drop this")
    sends = "D" in roles or (roles.count("P") > 1 and setup.pool_scope == "global")
    idle = next((name for name in NETWORK if getattr(setup, name) is not None), None)
    if idle is not None and not sends and "M" not in roles:
        how = "nothing is sent between its instances; drop it"
        raise SetupError(f"{_dotted(setup, idle)}: no effect on cluster {setup.cluster}: {how}")
    if setup.vram_tokens is not None and "D" not in roles and "M" not in roles:
        raise SetupError(f"vram.tokens: no effect on cluster {setup.cluster}: nothing decodes; drop it")
    check_scope(setup, elastic="D" in roles)  # with them, a policy may change roles: replays look again
    if setup.warm_from is not None and "M" in roles and setup.prefix_cache == "off":
        raise SetupError("warm_from: no effect where coupled.prefix_cache is off; drop it")


def _check_prefill(setup: Setup, roles: list[str]) -> None:
    given = [name for name in STAGES if getattr(setup, name) != _default(setup, name)]
    if given and "M" in roles:
        how = "its instances prefill and decode in steps of their own, see coupled.schedule; drop it"
        raise SetupError(f"{_dotted(setup, given[0])}: no effect on cluster {setup.cluster}: {how}")
    if given and given[-1] in DECODING and "D" not in roles:
        dotted = _dotted(setup, given[-1])
        raise SetupError(f"{dotted}: no effect on cluster {setup.cluster}: nothing decodes; drop it")
    if setup.dram_gbytes_per_s is not None and setup.prefill_layers == "fitted":
        raise SetupError(
            "dram.gbytes_per_s: no effect where prefill.layers is fitted, whose times hold the load as measured; "
            "set that to overlapped or serialised, or drop this"
        )
    if setup.prefill_group == 1:
        return
    if setup.prefill_layers != "fitted":
        raise SetupError(
            f"prefill.layers: {setup.prefill_layers} is known for single nodes only; drop it, or prefill.group"
        )
    if any(event.action == "switch" for event in parse_events(setup.events)):
        raise SetupError(
            f"events: a switch changes the role of one node, and a prefill instance here is "
            f"{setup.prefill_group} of them; drop it, or prefill.group"
        )


def _check_coupled(setup: Setup, *, coupled: bool) -> None:
    given = [name for name in (*COUPLED, *UNCOUPLED) if getattr(setup, name) != _default(setup, name)]
    idle = next((name for name in given if coupled != (name in COUPLED)), None)
    if idle is not None:
        raise SetupError(f"{_dotted(setup, idle)}: no effect on cluster {setup.cluster}: {_IDLE_ON[coupled]}")
    if setup.schedule == "one-at-a-time" and (setup.step_tokens or setup.sequences):
        name = "step_tokens" if setup.step_tokens else "sequences"
        raise SetupError(f"coupled.{name}: no effect where requests run one at a time; drop it")
    if coupled and setup.schedule == "chunked" and setup.step_limits[0] < setup.step_limits[1]:
        raise SetupError(
            f"coupled.step_tokens: a chunked step of {setup.step_limits[0]} tokens cannot decode "
            f"{setup.step_limits[1]} requests; give as many tokens, or a lower coupled.sequences"
        )


def _default(setup: Setup, name: str) -> Any:
    return type(setup).__dataclass_fields__[name].default


def _dotted(setup: Setup, name: str) -> str:
    dotted: str = type(setup).__dataclass_fields__[name].metadata["setting"].dotted
    return dotted
