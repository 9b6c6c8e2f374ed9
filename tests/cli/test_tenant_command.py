"""`ridgeline tenant` against a real gateway's admin API over HTTP."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from ridgeline_cli.__main__ import build_app
from ridgeline_cli.context import CliContext
from ridgeline_cli.tenant.admin_api import find_admin
from ridgeline_cli.tenant.derivation import derive_price
from ridgeline_cli.tenant.session import seconds_of
from ridgeline_cli.up.ready_file import Pids, Ready, write_ready
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.errors import Conflict, NotFound, PeerError, RidgelineError, SettingsError
from ridgeline_roofline.catalogue.gpus import gpu_named
from ridgeline_testing.gateway_platform import ADMIN_KEY, bare_gateway
from typer.testing import CliRunner

Run = Callable[..., Any]


@pytest.fixture
def admin_url(tmp_path: Path) -> Iterator[str]:
    """A gateway's admin port, served by a thread of its own: the command line is synchronous."""
    ready, urls = threading.Event(), []
    stop: list[Callable[[], None]] = []

    def serve() -> None:
        import asyncio

        async def run() -> None:
            async with bare_gateway(tmp_path / "gateway") as gateway:
                config = uvicorn.Config(
                    gateway.admin_app, host="127.0.0.1", port=0, lifespan="off", log_config=None
                )
                server = uvicorn.Server(config)
                server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
                task = asyncio.create_task(server.serve())
                while not server.started:  # noqa: ASYNC110  # it has no event for this
                    await asyncio.sleep(0.01)
                urls.append(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
                stop.append(lambda: setattr(server, "should_exit", True))
                ready.set()
                await task

        asyncio.run(run())

    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(30)
    yield urls[0]
    stop[0]()
    thread.join(30)


@pytest.fixture
def run(admin_url: str, tmp_path: Path) -> Run:
    """Runs `ridgeline tenant WORDS --json` and gives the object; raises what the command raised."""
    ready = Ready("http://127.0.0.1:1/v1", "unused", admin_url, ADMIN_KEY, Pids(1, 2, (3,)))
    path = tmp_path / "ready.json"
    write_ready(path, ready)
    context = CliContext(home=tmp_path, environ={}, clock=SystemClock())

    def invoke(*words: str, as_json: bool = True) -> Any:
        flags = ["--ready-file", str(path), *(["--json"] if as_json else [])]
        result = CliRunner().invoke(build_app("tenant"), ["tenant", *words, *flags], obj=context)
        if isinstance(result.exception, RidgelineError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout) if as_json else result.stdout

    return invoke


def test_a_tenants_life(run: Run) -> None:
    made = run("create", "globex", "--quota", "10,1000", "--class", "batch", "--model", "a", "--model", "b")
    assert made["key"].startswith("rl-")
    assert (made["quota"], made["class"]) == ({"rate_tokens_per_s": 10.0, "burst_tokens": 1000.0}, "batch")
    changed = run(
        "set", "globex", "--weight", "2", "--model", "all", "--max-concurrent", "4", "--debt-cap", "50"
    )
    assert (changed["weight"], changed["models"], changed["max_concurrent_requests"]) == (2.0, None, 4)
    assert changed["quota"] == made["quota"]
    assert run("set", "globex", "--quota", "none", "--max-concurrent", "0")["quota"] is None
    rotated = run("rotate", "globex", "--overlap", "1h")
    shown = run("show", "globex")
    assert [key["works"] for key in shown["keys"]] == [True, True]
    assert [key["expires_ms"] is None for key in shown["keys"]] == [False, True]
    run("revoke", rotated["id"])
    assert [key["works"] for key in run("show", "globex")["keys"]] == [True, False]
    assert [tenant["id"] for tenant in run("list")["tenants"]] == ["globex"]


def test_what_people_read_names_keys_once_and_never_again(run: Run) -> None:
    made = run("create", "globex", "--quota", "10,1000", as_json=False)
    assert "rl-" in made
    assert "shown this once" in made
    shown = run("show", "globex", as_json=False)
    assert "rl-" not in shown
    assert "10 resource tokens/s, at most 1000" in shown
    assert "1,000 of 1,000" in run("list", as_json=False)


def test_a_tenant_is_not_made_twice_nor_changed_before_it_exists(run: Run) -> None:
    run("create", "globex")
    with pytest.raises(Conflict, match="globex"):
        run("create", "globex")
    with pytest.raises(NotFound, match="initech"):
        run("set", "initech", "--weight", "2")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        pytest.param(["set", "globex"], "nothing to change", id="nothing"),
        pytest.param(["set", "globex", "--quota", "many"], "many", id="quota"),
        pytest.param(["rotate", "globex", "--overlap", "soon"], "soon", id="overlap"),
        pytest.param(["price", "m", "--freeze"], "nothing to freeze", id="freeze-nothing"),
        pytest.param(["price", "m", "--weights", "1,2"], "1,2", id="two-weights"),
        pytest.param(["revoke", "rl-abc-def"], "id alone", id="a-whole-key"),
    ],
)
def test_a_wrong_word_is_named(run: Run, words: list[str], names: str) -> None:
    with pytest.raises(SettingsError, match=names):
        run(*words)


def test_times_are_read_with_their_unit() -> None:
    assert [seconds_of(text, param="ttl") for text in ("90s", "1.5m", "2h", "1d")] == [90, 90, 7200, 86_400]


def test_another_gateways_admin_port_needs_a_key(tmp_path: Path) -> None:
    bare = CliContext(home=tmp_path, environ={}, clock=SystemClock())
    with pytest.raises(SettingsError, match="RIDGELINE_ADMIN_KEY"):
        find_admin(bare, admin_url="http://gateway:8001", admin_key_file=None, ready_file=None)
    keyed = CliContext(home=tmp_path, environ={"RIDGELINE_ADMIN_KEY": "sesame"}, clock=SystemClock())
    found = find_admin(keyed, admin_url="http://gateway:8001/", admin_key_file=None, ready_file=None)
    assert (found.url, found.key) == ("http://gateway:8001", "sesame")
    assert "sesame" not in repr(found)


def test_a_gateway_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    context = CliContext(home=tmp_path, environ={"RIDGELINE_ADMIN_KEY": "sesame"}, clock=SystemClock())
    words = ["tenant", "list", "--admin-url", "http://127.0.0.1:1"]
    result = CliRunner().invoke(build_app("tenant"), words, obj=context)
    assert isinstance(result.exception, PeerError)
    assert "is it running?" in str(result.exception)


def test_a_price_is_derived_shown_frozen_and_never_changed(run: Run) -> None:
    words = ["price", "served-llama", "--of", "llama-3.1-8b", "--gpu", "h100-sxm", "--set", "batch=32"]
    shown = run(*words)
    assert run("price", "served-llama")["prices"] == []
    frozen = run(*words, "--freeze")
    assert (frozen["version"], frozen["model"]) == ("v1", "served-llama")
    assert frozen["weights"] == pytest.approx(shown["weights"])
    assert "llama-3.1-8b on 1 x h100-sxm, batch 32" in frozen["derivation"]
    typed = run("price", "served-llama", "--weights", "1,0.1,5", "--usd", "0.5,0.05,2", "--freeze")
    assert (typed["version"], typed["usd_per_million"]["output"]) == ("v2", 2.0)
    assert [price["version"] for price in run("price", "served-llama")["prices"]] == ["v1", "v2"]
    with pytest.raises(Conflict, match="v1"):
        run("price", "served-llama", "--weights", "1,1,1", "--freeze", "--version", "v1")
    run("create", "globex")
    text = run("show", "globex", as_json=False)
    assert "served-llama v2" in text


def test_a_derived_price_follows_the_roofline() -> None:
    given = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "tp": "1", "batch": "64"}
    found = derive_price(given, reference_model=None, find_gpu=gpu_named)
    assert found.weights["prompt"] == 1.0
    assert 0 < found.weights["cached"] < 1 < found.weights["output"]
    # Twice the batch shares each read of the weights: an output token weighs less.
    more = derive_price(given | {"batch": "128"}, reference_model=None, find_gpu=gpu_named)
    assert more.weights["output"] < found.weights["output"]
    # Against a model of a tenth of the size each token weighs more.
    small = derive_price(given, reference_model="smollm2-135m", find_gpu=gpu_named)
    assert small.weights["prompt"] > 5
    ratio = found.usd_per_million["output"] / found.usd_per_million["prompt"]
    assert ratio == pytest.approx(found.weights["output"], rel=1e-3)


def test_usage_of_a_tenant_that_used_nothing(run: Run) -> None:
    run("create", "globex")
    found = run("usage", "globex", "--since", "1h")
    assert (found["data"], found["total"]["requests"], found["audit"]["mismatched_requests"]) == ([], 0, 0)
    assert "can be redone" in run("usage", "globex", as_json=False)
