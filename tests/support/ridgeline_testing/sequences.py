"""Sequences for tests of what looks at them: no engine, no blocks."""

from typing import Any

from ridgeline_contracts.blockhash import HashScope
from ridgeline_contracts.ids import Attempt, RequestId, TenantId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.request import PriorityClass, Request, RequestKey
from ridgeline_engine.sequence import Family, Progress, Sequence


def sequence(
    name: str = "r",
    *,
    prompt: int = 10,
    output: int = 0,
    most: int = 50,
    rank: float = 0.0,
    tenant: str = "",
    priority: PriorityClass = PriorityClass.INTERACTIVE,
    **changes: Any,
) -> Sequence:
    """One that waits, of `prompt` tokens and `output` more. Batch ranks behind interactive."""
    request = Request(
        RequestKey(RequestId(name), Attempt(0)),
        tuple(range(prompt)),
        SamplingParams(max_tokens=most),
        tenant=TenantId(tenant),
        priority=priority,
    )
    return Sequence(
        family=Family(request),
        request=request,
        prompt_tokens=prompt,
        choice=0,
        rank=(float(priority is PriorityClass.BATCH), rank),
        seed=0,
        max_output_tokens=most,
        scope=HashScope(b"", "w"),
        end_token_ids=frozenset(),
        progress=Progress(0.0),
        tokens=[*range(prompt), *(1 for _ in range(output))],
        **changes,
    )
