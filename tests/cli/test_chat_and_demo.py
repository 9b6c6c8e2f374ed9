"""The conversation, where it finds its server, and what the demo concludes."""

import contextlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from ridgeline_cli.chat import Conversation, answer_object, find_server, timing_line
from ridgeline_cli.context import CliContext
from ridgeline_cli.demo_platform import OwnPlatform, started_platform
from ridgeline_cli.demo_report import DemoFigures, figures_of, figures_table, problem_with
from ridgeline_cli.openai_stream import Answer, Message, Server
from ridgeline_cli.up.ready_file import Pids, Ready, write_ready
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.errors import NotFound, Overloaded, PeerError, SettingsError

ANSWER = Answer(
    text="Hello",
    finish_reason="stop",
    client_ttft_ms=80.5,
    client_total_ms=1080.5,
    usage={"prompt_tokens": 40, "completion_tokens": 11, "prompt_tokens_details": {"cached_tokens": 32}},
    extension={
        "clocks": {"gateway_ttft_ms": 70.0, "engine_ttft_ms": 60.0},
        "quota": {"charged": 51.0, "remaining": 999.0},
    },
    headers={},
)
FIGURES = DemoFigures(80.5, 70.0, 60.0, 1080.5, 10.0, 40, 32, 11, 51.0, 999.0)


def _context(home: Path) -> CliContext:
    return CliContext(home=home, environ={}, clock=VirtualClock())


def test_a_conversation_sends_what_was_said_before() -> None:
    asked: list[list[Message]] = []

    def ask(messages: list[Message]) -> Answer:
        asked.append(messages)
        return ANSWER

    conversation = Conversation(ask, "Be kind.")
    conversation.say("one")
    conversation.say("two")
    assert [message["role"] for message in asked[1]] == ["system", "user", "assistant", "user"]
    conversation.reset()
    conversation.say("three")
    assert [message["content"] for message in asked[2]] == ["Be kind.", "three"]


def test_a_question_without_an_answer_is_not_kept() -> None:
    def refuse(messages: list[Message]) -> Answer:
        raise Overloaded("later")

    conversation = Conversation(refuse)
    with pytest.raises(Overloaded):
        conversation.say("one")
    assert conversation.messages == []


def test_the_timing_line_names_what_matters() -> None:
    assert timing_line(ANSWER) == "11 tokens, first after 80 ms, 10.0 tokens/s, 32 of 40 prompt tokens cached"
    cut = replace(ANSWER, finish_reason="length", client_ttft_ms=None)
    assert timing_line(cut) == "11 tokens, 32 of 40 prompt tokens cached, cut at the token limit"


def test_an_answer_can_be_written_as_json() -> None:
    held = json.loads(json.dumps(answer_object("m", ANSWER)))
    assert held["text"] == "Hello"
    assert held["ridgeline"]["quota"]["remaining"] == 999.0


def test_the_server_is_found_by_the_default_ready_file(tmp_path: Path) -> None:
    ready = Ready("http://here/v1", "rl-made", "http://admin", "x", Pids(1, 2, (3,)))
    write_ready(tmp_path / "up" / "ready.json", ready)
    found = find_server(_context(tmp_path), base_url=None, api_key=None, ready_file=None)
    assert found == Server("http://here/v1", "rl-made")


def test_flags_go_before_the_ready_file(tmp_path: Path) -> None:
    found = find_server(_context(tmp_path), base_url="http://there/v1/", api_key="k", ready_file=None)
    assert found == Server("http://there/v1", "k")


def test_half_a_pair_and_nothing_at_all_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="RIDGELINE_API_KEY"):
        find_server(_context(tmp_path), base_url="http://there/v1", api_key=None, ready_file=None)
    with pytest.raises(NotFound, match="ridgeline up"):
        find_server(_context(tmp_path), base_url=None, api_key=None, ready_file=None)


def test_figures_keep_each_clock_apart() -> None:
    assert figures_of(ANSWER) == FIGURES
    bare = figures_of(replace(ANSWER, extension={}))
    assert (bare.gateway_ttft_ms, bare.engine_ttft_ms, bare.quota_left) == (None, None, None)


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        pytest.param(FIGURES, None, id="hit"),
        pytest.param(replace(FIGURES, cached_tokens=0), "found nothing in the prefix cache", id="miss"),
        pytest.param(replace(FIGURES, completion_tokens=0), "empty", id="empty"),
    ],
)
def test_the_demo_fails_without_a_hit(second: DemoFigures, problem: str | None) -> None:
    found = problem_with([replace(FIGURES, cached_tokens=0), second])
    assert (found is None) if problem is None else (found is not None and problem in found)


def test_the_table_names_every_clock() -> None:
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(figures_table([FIGURES, replace(FIGURES, quota_left=None)], ("first", "again")))
    text = captured.get()
    for words in (
        "client TTFT",
        "gateway TTFT",
        "engine TTFT",
        "of them cached",
        "quota left",
        "unlimited",
        "999",
    ):
        assert words in text


def test_a_platform_that_cannot_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    platform = OwnPlatform(tmp_path, ["--dtype", "fp8"], dict(os.environ))
    with (
        pytest.raises(PeerError, match=r"exit code 2:\nerror: --dtype 'fp8' is unknown"),
        started_platform(platform, while_waiting=contextlib.nullcontext()),
    ):
        pass
