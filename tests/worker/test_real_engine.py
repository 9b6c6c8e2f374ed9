"""The real engine behind the contract: a tiny random Llama on the CPU, in a worker started as users start it."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import pytest
import pytest_asyncio
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.proto import worker_pb2_grpc
from ridgeline_testing.tiny_llama import build_tiny_llama

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPTS = [list(range(10, 10 + length)) for length in (1, 15, 16, 17, 40, 70)]


@dataclass
class Served:
    process: asyncio.subprocess.Process
    stub: worker_pb2_grpc.WorkerStub
    variant: pb.Variant

    async def session(self, gateway: str = "g"):
        call = self.stub.Session()
        await call.write(pb.GatewayMessage(hello=pb.GatewayHello(gateway_id=gateway, contract_version=1)))
        assert (await call.read()).HasField("hello")
        return call

    def submit(self, name: str, prompt: list[int], **fields: object) -> pb.GatewayMessage:
        sampling = pb.Sampling(
            max_tokens=int(str(fields.pop("max_tokens", 24))),
            top_p=1.0,
            repetition_penalty=1.0,
            ignore_eos=True,
        )
        submit = pb.Submit(request_id=name, variant=self.variant, sampling=sampling, **fields)
        submit.prompt.add().tokens.ids.extend(prompt)
        return pb.GatewayMessage(submit=submit)


async def _outputs(call, terminals: int) -> dict[str, tuple[list[int], pb.Finish]]:
    tokens: dict[str, list[int]] = {}
    finishes: dict[str, pb.Finish] = {}
    while len(finishes) < terminals:
        message = await call.read()
        for row in message.frame.rows:
            made = tokens.setdefault(row.request_id, [])
            assert row.first_offset == len(made)
            made.extend(row.tokens)
            if row.HasField("finish"):
                assert row.request_id not in finishes
                finishes[row.request_id] = row.finish
    return {name: (tokens[name], finish) for name, finish in finishes.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory):
    folder = build_tiny_llama(tmp_path_factory.mktemp("tiny"))
    # Compiled kernels are kept between runs, by their source and machine, as a worker keeps them.
    cache = Path.home() / ".cache" / "ridgeline" / "kernels"
    flags = ["--model", folder, "--model-name", "tiny", "--dtype", "fp32", "--threads", "1"]
    flags += ["--kv-memory", "8MiB", "--cache-dir", cache, "--port", "0", "--metrics-port", "0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ridgeline_worker", *map(str, flags), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    port = None
    while port is None:
        line = (await process.stderr.readline()).decode()
        assert line, "the worker ended"
        if "worker.listening" in line:
            port = line.partition("address=127.0.0.1:")[2].split()[0]
    drained = asyncio.create_task(process.stderr.read())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        read = load_model_folder(folder)
        variant = pb.Variant(
            model="tiny",
            weights_revision=read.weights_revision,
            tokenizer_hash=read.tokenizer_hash,
            template_hash=read.chat_template_sha256,
        )
        yield Served(process, worker_pb2_grpc.WorkerStub(channel), variant)
    process.send_signal(signal.SIGTERM)
    log = (await drained).decode()
    assert await process.wait() == 0, log


async def test_a_text_is_the_same_alone_batched_with_others_and_from_the_cache(served) -> None:
    call = await served.session()
    alone = []
    for number, prompt in enumerate(PROMPTS):
        await call.write(served.submit(f"alone{number}", prompt))
        alone.append((await _outputs(call, 1))[f"alone{number}"][0])
    for number, prompt in enumerate(PROMPTS):
        await call.write(served.submit(f"batched{number}", prompt))
    batched = await _outputs(call, len(PROMPTS))
    assert [batched[f"batched{number}"][0] for number in range(len(PROMPTS))] == alone
    assert batched["batched5"][1].counts.cached_tokens == 64
    assert batched["batched5"][1].counts.prompt_tokens == 70
    call.cancel()


async def test_another_salt_shares_no_cache(served) -> None:
    call = await served.session()
    await call.write(served.submit("a", PROMPTS[4], cache_salt=b"a"))
    await _outputs(call, 1)
    await call.write(served.submit("b", PROMPTS[4], cache_salt=b"b"))
    assert (await _outputs(call, 1))["b"][1].counts.cached_tokens == 0
    await call.write(served.submit("c", PROMPTS[4], cache_salt=b"a"))
    assert (await _outputs(call, 1))["c"][1].counts.cached_tokens == 32
    call.cancel()


async def test_a_retry_goes_on_where_the_first_attempt_ended(served) -> None:
    call = await served.session()
    await call.write(served.submit("whole", PROMPTS[3], max_tokens=12))
    whole = (await _outputs(call, 1))["whole"][0]
    retry = served.submit("retry", PROMPTS[3], max_tokens=12, attempt=1)
    retry.submit.emitted.add(choice=0, ids=whole[:5])
    await call.write(retry)
    message = await call.read()
    assert message.frame.rows[0].first_offset == 5
    tokens = list(message.frame.rows[0].tokens)
    while len(tokens) < 7:
        tokens += list((await call.read()).frame.rows[0].tokens)
    assert whole[:5] + tokens == whole
    call.cancel()


async def test_a_prompt_that_is_too_long_is_refused_by_the_engine_in_its_terminal_row(served) -> None:
    call = await served.session()
    await call.write(served.submit("long", [5] * 5000))
    message = await call.read()
    assert message.frame.rows[0].finish.error_code == "invalid_request"
    call.cancel()


async def test_a_killed_core_is_replaced_by_one_that_gives_the_same_text(served) -> None:
    call = await served.session()
    await call.write(served.submit("before", PROMPTS[4]))
    before = (await _outputs(call, 1))["before"][0]
    await call.write(served.submit("running", PROMPTS[4], max_tokens=1500))
    await call.read()
    (core,) = psutil.Process(served.process.pid).children()
    os.kill(core.pid, signal.SIGKILL)
    finish = None
    while finish is None:
        message = await call.read()
        finish = next((row.finish for row in message.frame.rows if row.HasField("finish")), None)
    assert finish.error_code == "worker_lost"
    while not (await call.read()).HasField("hello"):
        pass
    await call.write(served.submit("after", PROMPTS[4]))
    tokens, finish = (await _outputs(call, 1))["after"]
    assert tokens == before
    assert finish.counts.cached_tokens == 0
    call.cancel()
