"""What every component reads from a model's folder: its shape, its end tokens, its hashes.

A folder is laid out as Hugging Face lays it out: config.json, generation_config.json, *.safetensors,
tokenizer.json, tokenizer_config.json. One that `ridgeline model fetch` made or linked also holds a
manifest.json with the size and the SHA-256 of each file, so that a start need not read gigabytes to know
which weights it has. Without a manifest all is hashed here, once per call.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline_contracts.errors import NotFound, SettingsError
from ridgeline_contracts.ids import ModelName, TokenId

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"
MANIFEST_FILE = "manifest.json"
MANIFEST_SCHEMA = 1

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model, named relative to its folder."""

    name: str
    size_bytes: int
    sha256: str
    mtime_ns: int | None = None
    """Set only for a file that the cache links to: its owner may change it behind our back."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model as its folder describes it. Holds no weights and no open file."""

    path: Path
    name: ModelName
    config: JsonObject
    """config.json as parsed. Treat as read-only."""
    eos_token_ids: tuple[TokenId, ...]
    """Every id that ends a sequence, the tokenizer's own end token first; never empty."""
    bos_token_id: TokenId | None
    add_bos: bool
    """Whether plain text (no chat template) is to be started with `bos_token_id`."""
    context_tokens: int
    vocabulary_tokens: int
    """Rows of the embedding matrix; the tokenizer may use fewer."""
    chat_template: str | None
    """Jinja source. It writes its own start tokens: never add a BOS to what it renders."""
    chat_template_sha256: str | None
    tokenizer_json_sha256: str
    tokenizer_hash: str
    """SHA-256 over tokenizer.json followed by the chat template: equal hash, equal ids for equal messages."""
    weights_revision: str
    """SHA-256 that names these weights, see `weights_revision`; part of the prefix cache's key."""
    files: tuple[ModelFile, ...]
    """All files above, sorted by name."""

    @property
    def config_path(self) -> Path:
        return self.path / CONFIG_FILE

    @property
    def tokenizer_path(self) -> Path:
        return self.path / TOKENIZER_FILE

    @property
    def weight_paths(self) -> tuple[Path, ...]:
        """The safetensors files in name order: one, or the shards that the index lists."""
        return tuple(self.path / file.name for file in self.files if file.name.endswith(".safetensors"))

    @property
    def weight_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files if file.name.endswith(".safetensors"))


def load_model_folder(path: Path | str) -> ModelFolder:
    """Reads the JSON files of a model folder and takes the weights' hash from its manifest.

    With a manifest only sizes (and, for linked files, modification times) of the weights are checked; without
    one the weights are read and hashed, about a second per gigabyte. Raises NotFound for a folder or a file
    that is missing, SettingsError for one that does not parse or that differs from its manifest.
    """
    folder = Path(path).absolute()
    if not folder.is_dir():
        raise NotFound(
            f"no model folder at {folder}: run `ridgeline model fetch NAME_OR_PATH`, or mend the path"
        )
    manifest = read_manifest(folder)
    files = (
        _listed_files(folder, manifest)
        if manifest is not None
        else hash_files(folder, model_file_names(folder))
    )
    config = read_json_object(folder / CONFIG_FILE)
    generation_config = _read_optional(folder / GENERATION_CONFIG_FILE)
    tokenizer_config = _read_optional(folder / TOKENIZER_CONFIG_FILE)
    tokenizer_json = (folder / TOKENIZER_FILE).read_bytes()
    template = read_chat_template(folder, tokenizer_config)
    return ModelFolder(
        path=folder,
        name=ModelName(manifest["name"] if manifest is not None else folder.name),
        config=config,
        eos_token_ids=_eos_token_ids(folder, generation_config, config),
        bos_token_id=_bos_token_id(folder, generation_config, config),
        add_bos=_adds_bos(folder, tokenizer_config, tokenizer_json),
        context_tokens=_positive(folder, config, "max_position_embeddings"),
        vocabulary_tokens=_positive(folder, config, "vocab_size"),
        chat_template=template,
        chat_template_sha256=None if template is None else hashlib.sha256(template.encode()).hexdigest(),
        tokenizer_json_sha256=hashlib.sha256(tokenizer_json).hexdigest(),
        tokenizer_hash=tokenizer_hash(tokenizer_json, template),
        weights_revision=weights_revision(files),
        files=files,
    )


def model_file_names(folder: Path) -> tuple[str, ...]:
    """Names of the files that make up the model in `folder`, sorted; its manifest is not among them.

    Raises NotFound for a missing config.json, tokenizer.json, weight file or shard.
    """
    weights = _weight_file_names(folder)
    needed = (CONFIG_FILE, TOKENIZER_FILE, *weights)
    missing = sorted(name for name in needed if not (folder / name).is_file())
    if missing:
        raise NotFound(f"{folder} is not a whole model folder: it lacks {', '.join(missing)}")
    extras = (GENERATION_CONFIG_FILE, TOKENIZER_CONFIG_FILE, CHAT_TEMPLATE_FILE, WEIGHTS_INDEX_FILE)
    return tuple(sorted({*needed, *(name for name in extras if (folder / name).is_file())}))


def hash_files(folder: Path, names: Iterable[str]) -> tuple[ModelFile, ...]:
    """Sizes and SHA-256 of the named files, in the given order. Reads all of each file."""
    return tuple(
        ModelFile(name=name, size_bytes=(folder / name).stat().st_size, sha256=sha256_of_file(folder / name))
        for name in names
    )


def sha256_of_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, read as a stream."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def weights_revision(files: Iterable[ModelFile]) -> str:
    """Hex SHA-256 over name, size and hash of config.json and of each safetensors file, in name order.

    config.json counts because the same matrices under another rope base give other keys and values.
    """
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        if file.name == CONFIG_FILE or file.name.endswith(".safetensors"):
            digest.update(f"{file.name} {file.size_bytes} {file.sha256}\n".encode())
    return digest.hexdigest()


def tokenizer_hash(tokenizer_json: bytes, chat_template: str | None) -> str:
    """Hex SHA-256 over the bytes of tokenizer.json followed by the chat template's UTF-8."""
    return hashlib.sha256(tokenizer_json + (chat_template or "").encode()).hexdigest()


def read_manifest(folder: Path) -> JsonObject | None:
    """The parsed manifest.json of a folder, None if it has none. Raises SettingsError for a strange one."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        return None
    manifest = read_json_object(path)
    if manifest.get("schema") != MANIFEST_SCHEMA:
        raise SettingsError(
            f"{path} has schema {manifest.get('schema')!r}, this version reads {MANIFEST_SCHEMA}: "
            "fetch the model again with --force"
        )
    if not isinstance(manifest.get("name"), str) or not isinstance(manifest.get("files"), list):
        raise SettingsError(f"{path} lacks a name or its list of files: fetch the model again with --force")
    return manifest


def manifest_files(folder: Path, manifest: Mapping[str, Any]) -> tuple[ModelFile, ...]:
    """The files that a manifest lists. Raises SettingsError for an entry that is not one."""
    try:
        return tuple(ModelFile(**entry) for entry in manifest["files"])
    except TypeError as error:
        raise SettingsError(
            f"{folder / MANIFEST_FILE} has a bad file entry ({error}): fetch again with --force"
        ) from error


def read_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The Jinja source: of chat_template.jinja, else tokenizer_config.json's (the `default` one of many)."""
    if (folder / CHAT_TEMPLATE_FILE).is_file():
        return (folder / CHAT_TEMPLATE_FILE).read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise SettingsError(
            f"chat_template in {folder / TOKENIZER_CONFIG_FILE} is not text: {type(template).__name__}"
        )
    return template


def read_json_object(path: Path) -> JsonObject:
    """Parses a small JSON file. Raises NotFound if it is missing, SettingsError if it is no JSON object."""
    try:
        parsed = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFound(f"{path} is missing: the model folder is not whole") from error
    except ValueError as error:
        raise SettingsError(
            f"{path} is not JSON ({error}): fetch the model again or mend the file"
        ) from error
    if not isinstance(parsed, dict):
        raise SettingsError(f"{path} holds a {type(parsed).__name__}, expected a JSON object")
    return parsed


def _read_optional(path: Path) -> JsonObject:
    return read_json_object(path) if path.is_file() else {}


def _weight_file_names(folder: Path) -> tuple[str, ...]:
    index_path = folder / WEIGHTS_INDEX_FILE
    if index_path.is_file():
        weight_map = read_json_object(index_path).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise SettingsError(f"{index_path} has no weight_map: download the model again")
        shards = sorted({str(name) for name in weight_map.values()})
        outside = [name for name in shards if Path(name).name != name]
        if outside:
            raise SettingsError(f"{index_path} names {outside[0]!r}: a shard must lie beside its index")
        return tuple(shards)
    if (folder / WEIGHTS_FILE).is_file():
        return (WEIGHTS_FILE,)
    return tuple(sorted(path.name for path in folder.glob("*.safetensors"))) or (WEIGHTS_FILE,)


def _listed_files(folder: Path, manifest: JsonObject) -> tuple[ModelFile, ...]:
    files = manifest_files(folder, manifest)
    for file in files:
        _check_unchanged(folder, file)
    return files


def _check_unchanged(folder: Path, file: ModelFile) -> None:
    """Cheap check against the manifest: sizes and times, and the hash of everything that is not weights."""
    path = folder / file.name
    if not path.is_file():
        raise NotFound(f"{path} is missing though the manifest lists it: fetch the model again with --force")
    stat = path.stat()
    same = stat.st_size == file.size_bytes and file.mtime_ns in (None, stat.st_mtime_ns)
    if same and not file.name.endswith(".safetensors"):
        same = sha256_of_file(path) == file.sha256
    if not same:
        raise SettingsError(f"{path} changed since it was fetched: fetch the model again with --force")


def _eos_token_ids(folder: Path, generation_config: JsonObject, config: JsonObject) -> tuple[TokenId, ...]:
    # As Hugging Face does it: generation_config decides if it says anything, config.json only if it does not.
    for source in (generation_config, config):
        value = source.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(not isinstance(each, int) or each < 0 for each in ids):
            raise SettingsError(
                f"eos_token_id of the model in {folder} is {value!r}, expected an id or a list of ids"
            )
        if ids:
            return tuple(TokenId(each) for each in dict.fromkeys(ids))
    raise SettingsError(
        f"neither {GENERATION_CONFIG_FILE} nor {CONFIG_FILE} in {folder} has an eos_token_id: add one"
    )


def _bos_token_id(folder: Path, generation_config: JsonObject, config: JsonObject) -> TokenId | None:
    value = generation_config.get("bos_token_id", config.get("bos_token_id"))
    if value is not None and not isinstance(value, int):
        raise SettingsError(f"bos_token_id of the model in {folder} is {value!r}, expected one id")
    return None if value is None else TokenId(value)


def _adds_bos(folder: Path, tokenizer_config: JsonObject, tokenizer_json: bytes) -> bool:
    stated = tokenizer_config.get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    try:
        processor = json.loads(tokenizer_json).get("post_processor") or {}
    except (ValueError, AttributeError) as error:
        raise SettingsError(
            f"{folder / TOKENIZER_FILE} is not a tokenizer ({error}): fetch the model again"
        ) from error
    steps = processor.get("processors", [processor])
    templates = [step["single"] for step in steps if step.get("type") == "TemplateProcessing"]
    return any(template and "SpecialToken" in template[0] for template in templates)


def _positive(folder: Path, config: JsonObject, key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise SettingsError(f"{key} in {folder / CONFIG_FILE} is {value!r}, expected a positive whole number")
    return value
