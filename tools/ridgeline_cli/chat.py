"""`ridgeline chat`: a conversation with a running platform in the terminal, or one question and answer."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import RidgelineError, SettingsError

from ridgeline_cli.context import CliContext, context_of
from ridgeline_cli.openai_stream import Answer, Message, Server, first_model, open_client, stream_chat
from ridgeline_cli.up.command import default_data_dir
from ridgeline_cli.up.ready_file import DEFAULT_NAME, read_ready

_HELP = "/reset forgets the conversation, /quit (or Ctrl-D) ends it"


@dataclass(slots=True)
class Conversation:
    """The messages so far and how to ask for the next one."""

    ask: Callable[[list[Message]], Answer]
    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def say(self, text: str) -> Answer:
        """Adds `text` and the answer to it. A question whose answer failed is not kept."""
        asked: list[Message] = [*self.messages, {"role": "user", "content": text}]
        answer = self.ask(asked)
        self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        return answer


def chat(
    ctx: typer.Context,
    question: Annotated[
        str | None, typer.Argument(help="Ask this one thing and end; without it, a conversation.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Of an OpenAI API, `/v1` included, instead of a ready file.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="RIDGELINE_API_KEY", help="For --base-url; better in the variable.")
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="As `ridgeline up` wrote it. [default: that of the data folder]")
    ] = None,
    model: Annotated[str | None, typer.Option(help="[default: the first that is served]")] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told before anything else.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of one answer. [default: the server's]")] = None,
    temperature: Annotated[float, typer.Option(help="0 gives the same answer every time.")] = 0.7,
    as_json: Annotated[
        bool, typer.Option("--json", help="One question: print one object at the end.")
    ] = False,
) -> None:
    """Chat with a running platform in the terminal.

    /reset forgets the conversation, /quit ends it, Ctrl-C stops an answer. Times after an answer are
    client_ttft_ms and the decode speed as this client saw them.
    """
    if as_json and question is None:
        raise SettingsError(
            "--json needs a question: ridgeline chat --json 'What is a prefix cache?'", param="json"
        )
    context = context_of(ctx)
    server = find_server(context, base_url=base_url, api_key=api_key, ready_file=ready_file)
    options: dict[str, Any] = {"temperature": temperature}
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    with open_client(server) as client:
        name = model or first_model(client, server)
        on_text = _ignore if as_json else _write
        ask = _asker(client, server, model=name, options=options, clock=context.clock, on_text=on_text)
        conversation = Conversation(ask, system)
        if question is None:
            _converse(conversation, name)
        elif as_json:
            typer.echo(json.dumps(answer_object(name, conversation.say(question))))
        else:
            _say_timing(conversation.say(question))


def find_server(
    context: CliContext, *, base_url: str | None, api_key: str | None, ready_file: Path | None
) -> Server:
    """From the flags, else from a ready file.

    Raises SettingsError for half a pair, NotFound where nothing runs.
    """
    if base_url is not None:
        if api_key is None:
            raise SettingsError(
                "--base-url needs a key: set RIDGELINE_API_KEY, or give --api-key", param="api_key"
            )
        return Server(base_url.rstrip("/"), api_key)
    ready = read_ready(ready_file or default_data_dir(context) / DEFAULT_NAME)
    return Server(ready.base_url, api_key or ready.api_key)


def answer_object(model: str, answer: Answer) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "model": model,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "client_ttft_ms": answer.client_ttft_ms,
        "client_total_ms": answer.client_total_ms,
        "tokens_per_s": answer.tokens_per_s,
        "usage": dict(answer.usage),
        "ridgeline": dict(answer.extension),
    }


def timing_line(answer: Answer) -> str:
    """`23 tokens, first after 81 ms, 34.1 tokens/s, 96 of 120 prompt tokens cached`."""
    parts = [f"{answer.completion_tokens} tokens"]
    if answer.client_ttft_ms is not None:
        parts.append(f"first after {answer.client_ttft_ms:.0f} ms")
    if answer.tokens_per_s is not None:
        parts.append(f"{answer.tokens_per_s:.1f} tokens/s")
    parts.append(f"{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens cached")
    if answer.finish_reason == "length":
        parts.append("cut at the token limit")
    return ", ".join(parts)


def _asker(
    client: httpx.Client,
    server: Server,
    *,
    model: str,
    options: dict[str, Any],
    clock: Clock,
    on_text: Callable[[str], None],
) -> Callable[[list[Message]], Answer]:
    def ask(messages: list[Message]) -> Answer:
        return stream_chat(
            client, server, model=model, messages=messages, options=options, clock=clock, on_text=on_text
        )

    return ask


def _converse(conversation: Conversation, model: str) -> None:
    typer.secho(f"{model}: {_HELP}", dim=True, err=True)
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return
        match text:
            case "":
                continue
            case "/quit" | "/exit":
                return
            case "/reset":
                conversation.reset()
                typer.secho("forgotten", dim=True, err=True)
            case command if command.startswith("/"):
                typer.secho(f"unknown command {command.split()[0]}: {_HELP}", dim=True, err=True)
            case _:
                _turn(conversation, text)


def _turn(conversation: Conversation, text: str) -> None:
    try:
        _say_timing(conversation.say(text))
    except KeyboardInterrupt:
        typer.secho("\nstopped; the question is not kept", dim=True, err=True)
    except RidgelineError as error:
        # The conversation goes on: a refused question or a restarted worker is no reason to lose it.
        typer.secho(f"\nerror: {error}", fg="red", err=True)


def _say_timing(answer: Answer) -> None:
    typer.echo()
    typer.secho(f"[{timing_line(answer)}]", dim=True, err=True)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _ignore(text: str) -> None:
    pass
