"""From a Submit on the wire to the engine's Request, or to the error that refuses it. Pure.

What only the engine knows (context length left, blocks, ranges of sampling parameters) it checks itself.
"""

from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.errors import Conflict, InvalidRequest, NotFound, Unsupported
from ridgeline_contracts.ids import Attempt, RequestId, TenantId
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.wire import CONTRACT_VERSION, sampling_from_wire
from ridgeline_engine.request import PriorityClass, Request, RequestKey

_CLASSES = {
    pb.PRIORITY_CLASS_UNSPECIFIED: PriorityClass.INTERACTIVE,
    pb.PRIORITY_CLASS_INTERACTIVE: PriorityClass.INTERACTIVE,
    pb.PRIORITY_CLASS_BATCH: PriorityClass.BATCH,
}


def key_of(submit: pb.Submit | pb.Cancel) -> RequestKey:
    return RequestKey(RequestId(submit.request_id), Attempt(submit.attempt))


def choices_of(submit: pb.Submit) -> int:
    """How many terminal rows the gateway expects, also for a Submit that is refused."""
    return max(1, submit.n)


def emitted_by_choice(submit: pb.Submit) -> tuple[tuple[int, ...], ...]:
    """What each choice emitted in earlier attempts; choices that are not named emitted nothing."""
    found: list[tuple[int, ...]] = [()] * choices_of(submit)
    for each in submit.emitted:
        if each.choice < len(found):
            found[each.choice] = tuple(each.ids)
    return tuple(found)


def check_contract(version: int) -> None:
    """Raises Unsupported for a gateway of another contract version."""
    if version != CONTRACT_VERSION:
        raise Unsupported(
            f"the gateway speaks contract version {version}, this worker {CONTRACT_VERSION}: "
            "run the same release on both",
            param="contract_version",
        )


def admit(submit: pb.Submit, *, served: pb.Variant, capabilities: Capabilities, now_ms: float) -> Request:
    """The request, with its deadline on the monotonic clock that `now_ms` was read from.

    Raises InvalidRequest, Unsupported, NotFound (another model) or Conflict (another revision of this one).
    """
    _check_identity(submit)
    _check_variant(submit.variant, served)
    _check_capabilities(submit, capabilities)
    emitted = emitted_by_choice(submit)
    return Request(
        key=key_of(submit),
        prompt=_prompt(submit),
        sampling=sampling_from_wire(submit.sampling),
        choices=choices_of(submit),
        emitted=emitted if any(emitted) else (),
        salt=submit.cache_salt,
        adapter_revision="",
        tenant=TenantId(submit.tenant),
        weight=submit.weight or 1.0,
        priority=_CLASSES[submit.priority_class],
        deadline_ms=now_ms + submit.remaining_ms if submit.HasField("remaining_ms") else None,
    )


def _check_identity(submit: pb.Submit) -> None:
    if not submit.request_id:
        raise InvalidRequest(
            "request_id is empty: the gateway makes one for each request", param="request_id"
        )
    if submit.weight < 0:
        raise InvalidRequest(f"weight={submit.weight} is negative: give more than 0", param="weight")
    named = [each.choice for each in submit.emitted]
    if len(set(named)) != len(named) or any(choice >= choices_of(submit) for choice in named):
        raise InvalidRequest(
            f"emitted names the choices {named} of a request with n={choices_of(submit)}", param="emitted"
        )


def _check_variant(asked: pb.Variant, served: pb.Variant) -> None:
    if asked == served:
        return
    if asked.model != served.model:
        raise NotFound(
            f"model {asked.model!r} is not served here, this worker has {served.model!r}", param="variant"
        )
    differing = [
        f"{field.name} {getattr(asked, field.name)!r} is not {getattr(served, field.name)!r}"
        for field in pb.Variant.DESCRIPTOR.fields
        if getattr(asked, field.name) != getattr(served, field.name)
    ]
    raise Conflict(
        f"this worker serves another variant of {served.model!r}: {'; '.join(differing)}; "
        "resolve the model again",
        param="variant",
    )


def _check_capabilities(submit: pb.Submit, capabilities: Capabilities) -> None:
    kind = "embed" if submit.kind == pb.KIND_EMBED else "generate"
    constraint = submit.constraint.WhichOneof("constraint")
    has_media = any(segment.WhichOneof("segment") == "media" for segment in submit.prompt)
    lacks = [
        ("kind", f"kind {kind}", kind not in capabilities.kinds),
        (
            "n",
            f"n={submit.n} (at most {capabilities.max_choices})",
            choices_of(submit) > capabilities.max_choices,
        ),
        ("constraint", f"constraint {constraint}", constraint not in (None, *capabilities.constraints)),
        (
            "adapter",
            f"adapter {submit.adapter.name!r}",
            bool(submit.adapter.name) and not capabilities.adapters,
        ),
        ("prompt", "media in the prompt", has_media and not capabilities.media),
        ("kv_source", f"KV by {submit.kv_source.backend!r}", _lacks_transfer(submit, capabilities)),
        ("logprobs", "logprobs", submit.sampling.HasField("logprobs") and not capabilities.logprobs),
    ]
    for param, what, is_lacking in lacks:
        if is_lacking:
            raise Unsupported(f"this worker's {capabilities.executor} executor lacks {what}", param=param)


def _lacks_transfer(submit: pb.Submit, capabilities: Capabilities) -> bool:
    return submit.HasField("kv_source") and submit.kv_source.backend not in capabilities.kv_transfer


def _prompt(submit: pb.Submit) -> tuple[int, ...]:
    tokens = tuple(token for segment in submit.prompt for token in segment.tokens.ids)
    if not tokens:
        raise InvalidRequest("the prompt has no tokens: send at least one", param="prompt")
    return tokens
