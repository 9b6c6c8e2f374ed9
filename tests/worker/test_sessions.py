"""A gateway's stream: hellos, rows, terminal rows, refusals, cancels, half-closes."""

import grpc
import pytest
from ridgeline_contracts.proto import worker_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")
VARIANT = pb.Variant(model="fake", weights_revision="w", tokenizer_hash="t", template_hash="c")


async def test_a_request_gets_its_tokens_in_order_and_one_terminal_row(worker) -> None:
    stream = await worker.stream()
    await stream.submit("a1", [10, 11], max_tokens=5)
    rows = (await stream.rows_until_finished(1))[("a1", 0)]
    assert [token for row in rows for token in row.tokens] == [11, 12, 13, 14, 15]
    assert [row.first_offset for row in rows] == [0, 1, 2, 3, 4]
    assert [row.HasField("finish") for row in rows] == [False] * 4 + [True]
    assert rows[-1].finish.reason == pb.FINISH_REASON_LENGTH
    assert rows[-1].finish.counts.prompt_tokens == 2
    assert rows[-1].finish.counts.emitted_tokens == 5
    assert stream.sequences == [1, 2, 3, 4, 5]


async def test_the_hello_names_the_core_its_capabilities_and_the_files(worker) -> None:
    stream = await worker.stream()
    hello = stream.hellos[0]
    assert (hello.worker_id, hello.worker_incarnation, hello.core_incarnation) == ("w1", "i1", "i2")
    assert hello.capabilities.max_choices == 4
    assert hello.variants == [VARIANT]
    assert set(hello.tokenizer_files) == {"tokenizer.json"}


async def test_all_rows_of_one_step_share_one_frame(worker) -> None:
    stream = await worker.stream()
    await stream.submit("c1", [10], n=3, max_tokens=2)
    frame = await stream.frame()
    assert [(row.request_id, row.choice) for row in frame.rows] == [("c1", 0), ("c1", 1), ("c1", 2)]


async def test_a_later_attempt_goes_on_after_what_was_emitted(worker) -> None:
    stream = await worker.stream()
    emitted = [pb.EmittedTokens(choice=0, ids=[7, 8, 9])]
    await stream.submit("d1", [10], attempt=2, emitted=emitted, max_tokens=5)
    rows = (await stream.rows_until_finished(1))[("d1", 0)]
    assert rows[0].first_offset == 3
    assert rows[0].attempt == 2
    assert rows[-1].finish.counts.emitted_tokens == 2


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        pytest.param({"variant": pb.Variant(model="other")}, "not_found", "'other'", id="another-model"),
        pytest.param(
            {
                "variant": pb.Variant(
                    model="fake", weights_revision="v2", tokenizer_hash="t", template_hash="c"
                )
            },
            "conflict",
            "weights_revision 'v2' is not 'w'",
            id="another-revision",
        ),
        pytest.param({"n": 9}, "unsupported", "n=9", id="too-many-choices"),
        pytest.param({"kind": pb.KIND_EMBED}, "unsupported", "embed", id="embedding"),
        pytest.param({"constraint": pb.Constraint(regex="a")}, "unsupported", "regex", id="constraint"),
        pytest.param({"adapter": pb.Adapter(name="a")}, "unsupported", "adapter", id="adapter"),
        pytest.param({"prompt": []}, "invalid_request", "no tokens", id="empty-prompt"),
        pytest.param({"max_tokens": 0}, "invalid_request", "max_tokens=0", id="refused-by-the-engine"),
    ],
)
async def test_a_refused_submit_ends_each_choice_with_an_error_row(worker, fields, code, says) -> None:
    stream = await worker.stream()
    await stream.submit("e1", [10], **fields)
    rows = await stream.rows_until_finished(fields.get("n", 1))
    for (request_id, _), choice_rows in rows.items():
        assert request_id == "e1"
        (row,) = choice_rows
        assert row.finish.reason == pb.FINISH_REASON_ERROR
        assert row.finish.error_code == code
        assert says in row.finish.error_message
    await stream.submit("e2", [10])
    assert (await stream.rows_until_finished(1))[("e2", 0)][-1].finish.reason == pb.FINISH_REASON_LENGTH


async def test_a_gateway_of_another_contract_version_is_refused_by_both_numbers(worker) -> None:
    stream = await worker.stream(contract_version=99)
    await stream.submit("f1", [10])
    (row,) = (await stream.rows_until_finished(1))[("f1", 0)]
    assert row.finish.error_code == "unsupported"
    assert "99" in row.finish.error_message
    assert "1" in row.finish.error_message.replace("99", "")


async def test_a_stream_that_begins_without_a_hello_is_an_error(worker) -> None:
    call = worker.stub.Session()
    await call.write(pb.GatewayMessage(cancel=pb.Cancel(request_id="g1")))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_cancelled_request_ends_once_and_the_other_goes_on(worker) -> None:
    stream = await worker.stream()
    await stream.submit("h1", [10], n=2, max_tokens=100_000)
    await stream.submit("h2", [10], max_tokens=60)
    await stream.frame()
    await stream.cancel("h1")
    await stream.cancel("h1")
    await stream.cancel("never-heard-of")
    rows = await stream.rows_until_finished(3)
    for choice in (0, 1):
        assert rows[("h1", choice)][-1].finish.reason == pb.FINISH_REASON_CANCELLED
    assert rows[("h2", 0)][-1].finish.reason == pb.FINISH_REASON_LENGTH


async def test_a_repeated_submit_does_not_disturb_the_one_that_runs(worker) -> None:
    stream = await worker.stream()
    await stream.submit("i1", [10], max_tokens=50)
    await stream.submit("i1", [10], max_tokens=50)
    rows = (await stream.rows_until_finished(1))[("i1", 0)]
    assert [token for row in rows for token in row.tokens] == list(range(10, 60))


async def test_another_gateways_request_of_the_same_key_is_refused_and_cannot_be_cancelled(worker) -> None:
    first, second = await worker.stream(), await worker.stream()
    await first.submit("j1", [10], max_tokens=200)
    await first.frame()
    await second.cancel("j1")
    await second.submit("j1", [10])
    (row,) = (await second.rows_until_finished(1))[("j1", 0)]
    assert row.finish.error_code == "unavailable"
    rows = (await first.rows_until_finished(1))[("j1", 0)]
    assert rows[-1].finish.reason == pb.FINISH_REASON_LENGTH


async def test_a_broken_stream_cancels_its_requests(worker) -> None:
    stream = await worker.stream()
    await stream.submit("k1", [10], max_tokens=1_000_000)
    await stream.frame()
    stream.call.cancel()
    reports = worker.stub.Load(pb.LoadRequest(interval_ms=50))
    async for report in reports:
        if report.running == 0 and not worker.application.front.has_outstanding_work:
            break
    assert not worker.application.front.has_outstanding_work


async def test_a_gateway_that_closes_its_side_still_gets_its_rows_and_then_the_end(worker) -> None:
    stream = await worker.stream()
    await stream.submit("l1", [10], max_tokens=30)
    await stream.call.done_writing()
    rows = (await stream.rows_until_finished(1))[("l1", 0)]
    assert rows[-1].first_offset == 29
    assert await stream.frame() is None
    assert await stream.call.code() == grpc.StatusCode.OK
