"""`ridgeline plan` as people run it: lists, answers, refusals."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ridgeline_cli.context import CliContext
from ridgeline_cli.plan.command import plan
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.errors import NotFound, SettingsError
from ridgeline_roofline.catalogue.gpus import GPU_IDS
from ridgeline_roofline.catalogue.models import MODEL_IDS
from ridgeline_roofline.plan.registry import TOPIC_NAMES
from typer import Typer
from typer.testing import CliRunner


def _run(home: Path, *arguments: str) -> str:
    """Output of `ridgeline plan ...`; raises what the command raises."""
    app = Typer()
    app.command()(plan)
    context = CliContext(home=home, environ={}, clock=SystemClock())
    result = CliRunner().invoke(app, arguments, obj=context, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def _json(home: Path, *arguments: str) -> Any:
    return json.loads(_run(home, *arguments, "--json"))


def test_alone_it_lists_every_topic_with_its_question(tmp_path: Path) -> None:
    listed = _run(tmp_path)
    assert all(name in listed for name in TOPIC_NAMES)
    assert [row["topic"] for row in _json(tmp_path)] == list(TOPIC_NAMES)


def test_a_topic_prints_its_working_and_where_it_breaks(tmp_path: Path) -> None:
    printed = _run(tmp_path, "decode-floor", "--tp", "8", "--plot")
    assert "17.38 GB read on each of 8 GPUs / 3.35 TB/s" in printed
    assert "This breaks when" in printed
    assert "context (tokens)" in printed


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "inputs.yaml"
    file.write_text("batch: 4\ncontext: 2k\nlaunch: 5us\n", encoding="utf-8")
    inputs = _json(tmp_path, "decode-floor", "--file", str(file), "--batch", "16")["inputs"]
    assert (inputs["batch"], inputs["context"], inputs["launch"]) == (16, 2000, pytest.approx(5e-6))


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 512,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = _json(tmp_path, "decode-floor", "--model", str(tmp_path), "--tp", "1", "--context", "100")
    assert found["inputs"]["model"] == tmp_path.name


def test_the_catalogue_has_a_source_for_every_figure(tmp_path: Path) -> None:
    found = _json(tmp_path, "catalogue")
    assert set(found["gpus"]) == set(GPU_IDS)
    assert set(found["models"]) == set(MODEL_IDS)
    figures = [
        each for group in ("gpus", "links") for owner in found[group].values() for each in owner.values()
    ]
    assert all(each["source"] and each["unit"] and each["evidence"] for each in figures)
    assert "nvidia-smi" in _run(tmp_path, "catalogue")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["nonsense"], "is no topic: give one of", id="topic"),
        pytest.param(["decode-floor", "--gpu", "this"], "run ridgeline calibrate first", id="this-machine"),
        pytest.param(["decode-floor", "--gpu", "a100"], "give one of h100-sxm", id="gpu"),
        pytest.param(["decode-floor", "--model", "gpt-5"], "give one of llama-3.1-8b", id="model"),
        pytest.param(["decode-floor", "--tp", "7"], "does not divide the 64 query heads", id="tp"),
        pytest.param(["decode-floor", "--ep", "2"], "has no experts", id="ep"),
        pytest.param(["decode-floor", "--tpot", "30"], "give for example 30ms", id="unit"),
        pytest.param(["decode-floor", "--weights", "fp7"], "give one of fp32 bf16", id="dtype"),
        pytest.param(["decode-floor", "--link", "wet string"], "neither a link nor a rate", id="link"),
        pytest.param(
            ["decode-floor", "--gpus", "4", "--tp", "8"], "fewer than the 8 of one layout", id="gpus"
        ),
        pytest.param(["decode-floor", "--set", "speed=9"], "it has host=0s launch=0s", id="set"),
    ],
)
def test_a_refusal_names_the_value_and_what_would_work(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        _run(tmp_path, *arguments)


def test_a_file_that_is_missing_or_no_mapping_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nothing\.yaml"):
        _run(tmp_path, "decode-floor", "--file", str(tmp_path / "nothing.yaml"))
    listed = tmp_path / "list.yaml"
    listed.write_text("- batch\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="holds a list"):
        _run(tmp_path, "decode-floor", "--file", str(listed))


def test_it_answers_within_a_second_and_without_torch(tmp_path: Path) -> None:
    """In a process of its own, as from a shell; in processor time, and the best of three: machines are noisy."""
    script = (
        "import sys; sys.argv = ['ridgeline', 'plan', 'decode-floor', '--json'];"
        "from ridgeline_cli.__main__ import build_app, read_context;"
        f"context = read_context({{'RIDGELINE_HOME': {str(tmp_path)!r}}});"
        "build_app('plan')(obj=context, standalone_mode=False);"
        "sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    durations_s = []
    for _ in range(3):
        before_s = _children_s()
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        durations_s.append(_children_s() - before_s)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["topic"] == "decode-floor"
    assert min(durations_s) < 1.0


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
