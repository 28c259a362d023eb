"""A slow, plain simulator of the same rules, written apart from the engine: agreement of the two means something.

Every decode step is an event and every number is worked out anew. ``simulate`` is the reference, ``fast.simulate`` the
package's engine behind the same signature; ``scenarios`` are small cases counted by hand, ``workloads`` random ones.

CHOICES, where DESIGN.md's rules leave one. [n] gives mean TTFT of the conversation trace at the defaults under
Algorithm 1, which must be 1,403.53 ms (cache-aware: 1,568.14 ms), or rule 9's counts of rejected requests, where it was
measured.

 1. Remaining fetch of a head the node idles for (view.queue_ms): its projected end at the present rates, minus now
    [1,403.53]. Bytes left at the uncontended rate gives 1,402.01; leaving it out gives 1,402.54.
 2. view.promised.since_ms: the true prefill end once there; before, now + the queue as it stands (remainder of the
    running, remaining fetch of the head, E of those routed before, its own E) [predictive at t_d 15 s: 1,201]. The
    prediction made at routing gives 1,217. The queue counts in order of routing, whatever a Router.order may do later.
    The end of a running prefill is its true one; later fetches in the queue are not waited for (waiting: 1,201 too).
 3. A waiting request in the predictive load ages like a promised one (gone once t_d has passed) or is not counted at
    all: the same numbers [1,201]. Counting it whatever its age gives 1,191. Leaving the candidate out gives 1,340.
    Contexts are those of now. At t_d 5-10 s no reading matters: all 758 rejections are of the TTFT.
 4. Every block of the prompt that is present is pinned at routing, holes beyond the first miss too [no effect].
 5. All stored blocks of the prompt are touched, new ones included, and blocks beyond a hole. Head first instead of
    tail first gives 1,403.58 (cache-aware 1,561.89); not touching the source of a fetch gives 1,396.48.
 6. Slots are taken one by one, an eviction and its insertion together. As new blocks are pinned, a policy that names
    the same victims for all evictions first (Eviction.evict_many) cannot be told apart.
 7. Hits are counted at routing, and hold: what a request waits for is computed before its turn. Only on a node where a
    routed request was turned away before its prefill are they counted once more at the start of a prefill, from what
    is ready by then and what this request fetched, and only downwards.
 8. A request turned away at its turn to prefill: its blocks are unpinned; those not ready are removed, or pass to the
    first in the queue that pins them. Its hits and computed tokens read 0. Whatever a prefill computes is ready at its
    end, also where another request had promised it.
 9. The admission is asked for its prefill-stage word when the prefill could start: its request is the head, and its
    fetch is done. Router.order is asked when a node needs a head; a head stays the head while the node idles for its
    fetch. Under an order of the policy's own no request overtakes the latest one routed before it, and still queued,
    that took slots for a block it stores (or inherited one): with prefix-chained ids that keeps all its hits true.
10. A fetch brings all that the holder has ready beyond the local hit (promised blocks count as local). A holder
    without a longer prefix, or the instance itself, is a wrong decision.
11. Preempted requests count their context at preemption in routed_tokens; their since_ms is the KV's arrival. A
    rejoin sets a new since_ms in view.joined, tells "joined" again, and leaves join_ps alone.
12. If the last one left cannot grow, it is preempted, and fails in the same boundary.
13. A request being asked about at arrival or at its KV's arrival is in no column of the view (nor in routed_tokens).
14. The view within an event shows what has been done so far: at a prefill end the pool is updated and the stream
    reset, then late_decode, "first_token" and "finished" are told, then the next head is called. Within a decode
    boundary a policy that listens sees the batch as it is by then.
15. late_decode to another instance: the stream so far is lost, all V bytes are sent anew, uncapped. It is asked of
    one-token requests too, so that it leaks nothing.
16. "Creation order" is that of the flow for transfer ends, of the prefill's start for prefill ends, of the instance
    id for decode boundaries (an engine that skips steps creates them in another order), of the trace for arrivals.
17. A request rejected at arrival keeps instances -1 and counts of 0; its predicted TTFT is kept.
18. Rates are whole bytes a second and sizes bytes x 10^12, so that rate x ps is exact: cap = V // E, fair share =
    room // flows, last layer = ceil(V / layers), end = ceil(unsent / rate). Progressive filling sets a level, not
    increments, and a flow whose cap is that level stops before the links that are full at it.
19. ``wrong role`` in view.fetch_ms, prefill_ms, queue_ms (decode instances) and step_ms (prefill instances) reads
    inf.
20. A step that ends at this very moment counts in the contexts a view shows, also before its boundary is worked off;
    who leaves there is still in the batch.
21. view.fetch_ms is tokens x (1000 x bytes a token / rate); the harness's own TTFT estimate adds queue, fetch and E,
    E being the rounded picoseconds.
"""

from .engine import simulate
from .state import Req, Result

__all__ = ["Req", "Result", "simulate"]
