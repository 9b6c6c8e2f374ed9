"""`ridgeline model` as a person or a script meets it: output, JSON, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ridgeline_cli.__main__ import build_app, read_context
from ridgeline_cli.context import CliContext
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.errors import SettingsError
from ridgeline_testing.tiny_gguf import tiny_config, tiny_tensors, write_tiny_gguf
from typer.testing import CliRunner, Result


@pytest.fixture
def context(tmp_path: Path) -> CliContext:
    return CliContext(home=tmp_path / "home", environ={}, clock=VirtualClock())


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    config = tiny_config()
    return write_tiny_gguf(tmp_path / "tiny.gguf", config, tiny_tensors(config))


def run(context: CliContext, *arguments: str) -> Result:
    found = CliRunner().invoke(build_app(), ["model", *arguments], obj=context, catch_exceptions=False)
    assert found.exit_code == 0
    return found


def run_json(context: CliContext, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(context, *arguments, "--json").stdout)
    return answer


def test_fetch_list_show_verify_and_remove_speak_json(context: CliContext, gguf_path: Path) -> None:
    fetched = run_json(context, "fetch", str(gguf_path))
    assert (fetched["name"], fetched["was_there"], fetched["eos_token_ids"]) == ("tiny", False, [2, 0])
    listed = run_json(context, "list")
    assert [(model["name"], model["state"]) for model in listed["models"]] == [("tiny", "ready")]
    assert listed["models"][0]["origin"]["reference"] == str(gguf_path)
    assert listed["fetchable"] == ["smollm2-135m-instruct"]
    shown = run_json(context, "show", "tiny")
    assert shown["weights_revision"] == fetched["weights_revision"] == listed["models"][0]["weights_revision"]
    assert (shown["layers"], shown["context_tokens"]) == (2, 512)
    verified = run_json(context, "verify", "tiny")
    assert (verified["ok"], verified["files"], verified["problems"]) == (True, 5, [])
    assert run_json(context, "remove", "tiny")["freed_bytes"] > 100_000
    assert run_json(context, "list")["models"] == []


def test_the_same_commands_speak_plainly(context: CliContext, gguf_path: Path) -> None:
    fetched = run(context, "fetch", str(gguf_path))
    assert "tiny is ready" in fetched.stdout
    assert "convert to bfloat16: 100%" in fetched.stderr
    assert "tiny is there already" in run(context, "fetch", "tiny").stdout
    listed = run(context, "list").stdout
    assert "tiny" in listed
    assert "to fetch: smollm2-135m-instruct" in listed
    assert "context_tokens         512" in run(context, "show", "tiny").stdout
    assert "5 files as fetched" in run(context, "verify", "tiny").stdout
    assert "removed tiny" in run(context, "remove", "tiny").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(
            ["fetch", "nope"], "unknown model 'nope': known by name: smollm2-135m-instruct", id="fetch"
        ),
        pytest.param(["show", "nope"], "no model 'nope'", id="show"),
        pytest.param(["verify", "tiny"], "tiny is damaged: tokenizer.json is missing", id="verify"),
        pytest.param(["remove", "../x"], "cannot name a model", id="remove"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(
    tmp_path: Path, context: CliContext, gguf_path: Path, arguments: list[str], says: str
) -> None:
    run(context, "fetch", str(gguf_path))
    (context.home / "models" / "tiny" / "tokenizer.json").unlink()
    completed = subprocess.run(
        [sys.executable, "-m", "ridgeline_cli", "model", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RIDGELINE_HOME": str(context.home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 2
    errors = [line for line in completed.stderr.splitlines() if not line.startswith("verify tiny: ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert says in errors[0]


@pytest.mark.parametrize("command", ["fetch", "list", "show", "verify", "remove"])
def test_every_command_explains_itself(context: CliContext, command: str) -> None:
    assert "--json" in run(context, command, "--help").stdout


def test_listing_and_showing_need_no_conversion_libraries() -> None:
    check = (
        "import sys, ridgeline_cli.__main__; sys.exit(bool({'torch', 'numpy', 'gguf'} & set(sys.modules)))"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", check], env=environ, check=False).returncode == 0


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({"RIDGELINE_HOME": "/srv/models"}, Path("/srv/models"), id="stated"),
        pytest.param({}, Path.home() / ".cache" / "ridgeline", id="default"),
        pytest.param({"RIDGELINE_HOME": ""}, Path.home() / ".cache" / "ridgeline", id="empty-is-unset"),
        pytest.param({"RIDGELINE_HOME": "~/models"}, Path.home() / "models", id="tilde"),
    ],
)
def test_the_cache_folder_comes_from_the_environment(environ: dict[str, str], expected: Path) -> None:
    assert read_context(environ).home == expected


def test_a_bare_install_says_what_fetching_needs(
    context: CliContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ridgeline_cli.model.fetch", None)
    with pytest.raises(SettingsError, match=r"needs the package .*: pip install 'ridgeline\[worker\]'"):
        run(context, "fetch", "tiny")
