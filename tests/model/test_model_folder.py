"""What `load_model_folder` reads, and what it refuses."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ridgeline_cli.model.manifest import Origin, write_manifest
from ridgeline_contracts.errors import NotFound, RidgelineError, SettingsError
from ridgeline_contracts.model_folder import (
    hash_files,
    load_model_folder,
    model_file_names,
    tokenizer_hash,
    weights_revision,
)
from ridgeline_testing.tiny_llama import CHATML_TEMPLATE, build_tiny_llama


def changed_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def with_manifest(folder: Path) -> Path:
    files = hash_files(folder, model_file_names(folder))
    write_manifest(folder, name="kept-name", origin=Origin("folder", str(folder), None), files=files)
    return folder


def test_a_plain_hugging_face_folder_is_read_and_hashed(tmp_path: Path) -> None:
    path = build_tiny_llama(tmp_path / "tiny", vocabulary_tokens=300, context_tokens=1024)
    folder = load_model_folder(path)
    assert (folder.name, folder.context_tokens, folder.vocabulary_tokens) == ("tiny", 1024, 300)
    assert folder.eos_token_ids == (2, 0)
    assert folder.chat_template == CHATML_TEMPLATE
    assert folder.weight_paths == (path / "model.safetensors",)
    assert folder.weight_bytes == (path / "model.safetensors").stat().st_size
    tokenizer_json = (path / "tokenizer.json").read_bytes()
    assert folder.tokenizer_json_sha256 == hashlib.sha256(tokenizer_json).hexdigest()
    assert folder.tokenizer_hash == hashlib.sha256(tokenizer_json + CHATML_TEMPLATE.encode()).hexdigest()
    assert {file.name for file in folder.files} == {entry.name for entry in path.iterdir()}


def test_a_manifest_gives_the_same_hashes_without_reading_the_weights(tmp_path: Path) -> None:
    path = build_tiny_llama(tmp_path / "tiny")
    hashed = load_model_folder(path)
    listed = load_model_folder(with_manifest(path))
    assert listed.name == "kept-name"
    assert listed.weights_revision == hashed.weights_revision
    assert listed.files == hashed.files
    size_bytes = listed.weight_bytes
    listed.weight_paths[0].write_bytes(b"\0" * size_bytes)
    # Only `model verify` reads the weights: a start must not take minutes.
    assert load_model_folder(path).weights_revision == hashed.weights_revision


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        pytest.param([5, 6, 5], 9, (5, 6), id="generation-config-decides"),
        pytest.param(7, [8, 9], (7,), id="a-single-id"),
        pytest.param(..., [8, 9], (8, 9), id="config-where-generation-config-is-silent"),
        pytest.param(None, 4, (4,), id="null-is-silent"),
        pytest.param(0, 4, (0,), id="zero-is-an-id"),
    ],
)
def test_all_end_of_sequence_ids_count(
    tmp_path: Path, generation: Any, config: Any, expected: tuple[int, ...]
) -> None:
    path = build_tiny_llama(tmp_path / "tiny")
    changed_json(path / "generation_config.json", eos_token_id=generation)
    changed_json(path / "config.json", eos_token_id=config)
    assert load_model_folder(path).eos_token_ids == expected


@pytest.mark.parametrize(
    ("stated", "processor", "expected"),
    [
        pytest.param(True, None, True, id="stated-true"),
        pytest.param(
            False, {"type": "TemplateProcessing", "single": [{"SpecialToken": {}}]}, False, id="stated-false"
        ),
        pytest.param(
            ..., {"type": "TemplateProcessing", "single": [{"SpecialToken": {}}]}, True, id="processor-adds"
        ),
        pytest.param(
            ...,
            {
                "type": "Sequence",
                "processors": [
                    {"type": "ByteLevel"},
                    {"type": "TemplateProcessing", "single": [{"SpecialToken": {}}, {"Sequence": {}}]},
                ],
            },
            True,
            id="one-of-several-adds",
        ),
        pytest.param(
            ..., {"type": "TemplateProcessing", "single": [{"Sequence": {}}]}, False, id="processor-adds-none"
        ),
        pytest.param(..., None, False, id="nothing-says-so"),
    ],
)
def test_whether_plain_text_gets_a_bos(tmp_path: Path, stated: Any, processor: Any, expected: bool) -> None:
    path = build_tiny_llama(tmp_path / "tiny")
    changed_json(path / "tokenizer_config.json", add_bos_token=stated)
    changed_json(path / "tokenizer.json", post_processor=processor)
    assert load_model_folder(path).add_bos is expected


@pytest.mark.parametrize(
    ("in_config", "jinja", "expected"),
    [
        pytest.param("inline", None, "inline", id="tokenizer-config"),
        pytest.param("inline", "file", "file", id="a-file-of-its-own-wins"),
        pytest.param(
            [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
            None,
            "d",
            id="named",
        ),
        pytest.param(..., None, None, id="a-base-model-has-none"),
    ],
)
def test_the_chat_template_is_found_where_it_lies(
    tmp_path: Path, in_config: Any, jinja: str | None, expected: str | None
) -> None:
    path = build_tiny_llama(tmp_path / "tiny")
    changed_json(path / "tokenizer_config.json", chat_template=in_config)
    if jinja is not None:
        (path / "chat_template.jinja").write_text(jinja)
    folder = load_model_folder(path)
    assert folder.chat_template == expected
    assert folder.tokenizer_hash == tokenizer_hash((path / "tokenizer.json").read_bytes(), expected)


def shard(path: Path) -> None:
    """Two shards and an index; the weights themselves do not matter here."""
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name, half in zip(names, (data[:1000], data[1000:]), strict=True):
        (path / name).write_bytes(half)
    index = {"weight_map": {"a": names[1], "b": names[0], "c": names[1]}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_those_that_the_index_lists(tmp_path: Path) -> None:
    path = build_tiny_llama(tmp_path / "tiny")
    shard(path)
    (path / "consolidated.safetensors").write_bytes(b"another form of the same weights")
    assert [found.name for found in load_model_folder(path).weight_paths] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        pytest.param(
            lambda path: changed_json(path / "generation_config.json", top_k=3), True, id="sampling-hints"
        ),
        pytest.param(lambda path: changed_json(path / "config.json", rope_theta=5.0), False, id="rope-base"),
        pytest.param(shard, False, id="other-files"),
    ],
)
def test_the_revision_names_the_weights_and_how_they_are_read(
    tmp_path: Path, change: Callable[[Path], None], same: bool
) -> None:
    path = build_tiny_llama(tmp_path / "tiny")
    before = load_model_folder(path).weights_revision
    change(path)
    assert (load_model_folder(path).weights_revision == before) is same


def test_the_revision_does_not_depend_on_the_order_of_files(tmp_path: Path) -> None:
    files = load_model_folder(build_tiny_llama(tmp_path / "tiny")).files
    assert weights_revision(reversed(files)) == weights_revision(files)


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        pytest.param(lambda p: (p / "config.json").unlink(), NotFound, "lacks config.json", id="no-config"),
        pytest.param(
            lambda p: (p / "tokenizer.json").unlink(), NotFound, "lacks tokenizer.json", id="no-tokenizer"
        ),
        pytest.param(
            lambda p: (p / "model.safetensors").unlink(), NotFound, "lacks model.safe", id="no-weights"
        ),
        pytest.param(
            lambda p: (p / "config.json").write_text("{"), SettingsError, "is not JSON", id="cut-config"
        ),
        pytest.param(
            lambda p: (p / "config.json").write_text("[]"), SettingsError, "holds a list", id="list-config"
        ),
        pytest.param(
            lambda p: changed_json(p / "config.json", max_position_embeddings=...),
            SettingsError,
            "max_position_embeddings in .* is None",
            id="no-context",
        ),
        pytest.param(
            lambda p: (p / "generation_config.json").write_text('{"eos_token_id": "</s>"}'),
            SettingsError,
            "eos_token_id .* is '</s>'",
            id="eos-is-text",
        ),
        pytest.param(
            lambda p: (
                changed_json(p / "config.json", eos_token_id=...),
                changed_json(p / "generation_config.json", eos_token_id=...),
            ),
            SettingsError,
            "has an eos_token_id",
            id="no-eos",
        ),
        pytest.param(
            lambda p: (p / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "../x.safetensors"}}'
            ),
            SettingsError,
            "must lie beside its index",
            id="shard-outside",
        ),
        pytest.param(
            lambda p: (p / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "x.safetensors"}}'
            ),
            NotFound,
            "lacks x.safetensors",
            id="missing-shard",
        ),
    ],
)
def test_a_broken_folder_is_one_clear_error(
    tmp_path: Path, damage: Callable[[Path], Any], error: type[RidgelineError], says: str
) -> None:
    path = build_tiny_llama(tmp_path / "tiny")
    damage(path)
    with pytest.raises(error, match=says):
        load_model_folder(path)


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        pytest.param(
            lambda p: os.truncate(p / "model.safetensors", 99),
            SettingsError,
            "safetensors changed",
            id="cut-weights",
        ),
        pytest.param(
            lambda p: (p / "model.safetensors").unlink(), NotFound, "the manifest lists it", id="no-weights"
        ),
        pytest.param(
            lambda p: changed_json(p / "config.json", rope_theta=5.0),
            SettingsError,
            "config.json changed",
            id="config",
        ),
        pytest.param(
            lambda p: changed_json(p / "manifest.json", schema=9), SettingsError, "schema 9", id="schema"
        ),
        pytest.param(
            lambda p: changed_json(p / "manifest.json", files=...), SettingsError, "lacks a name", id="files"
        ),
        pytest.param(
            lambda p: changed_json(p / "manifest.json", files=[{"sha": 1}]),
            SettingsError,
            "bad file entry",
            id="entry",
        ),
    ],
)
def test_a_folder_that_differs_from_its_manifest_is_refused(
    tmp_path: Path, damage: Callable[[Path], Any], error: type[RidgelineError], says: str
) -> None:
    path = with_manifest(build_tiny_llama(tmp_path / "tiny"))
    damage(path)
    with pytest.raises(error, match=says):
        load_model_folder(path)


def test_a_missing_folder_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="ridgeline model fetch"):
        load_model_folder(tmp_path / "absent")
