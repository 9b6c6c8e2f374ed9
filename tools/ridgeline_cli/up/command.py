"""The `ridgeline up` command: flags in, checks, then one run."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from ridgeline_contracts.model_folder import ModelFolder
from ridgeline_doctor.machine_evidence import MachineEvidence
from ridgeline_doctor.machine_probe import probe_machine

from ridgeline_cli.context import CliContext, context_of
from ridgeline_cli.model.commands import open_fetcher
from ridgeline_cli.model.progress import progress_for
from ridgeline_cli.up.data_dir import key_files, locked_data_dir, open_admin_key
from ridgeline_cli.up.display import UpDisplay
from ridgeline_cli.up.plan import ModelFacts, PlanFacts, Ports, plan_processes
from ridgeline_cli.up.ports import choose_ports
from ridgeline_cli.up.preflight import (
    UpOptions,
    check_options,
    resolve_dtype,
    resolve_kv_bytes,
    resolve_threads,
)
from ridgeline_cli.up.ready_file import DEFAULT_NAME
from ridgeline_cli.up.serving import Serving
from ridgeline_cli.up.sizes import parse_size

_DEFAULTS = UpOptions()


def default_data_dir(context: CliContext) -> Path:
    """Where a platform keeps its keys and stores unless `--data-dir` says otherwise."""
    return context.home / "up"


def up(
    ctx: typer.Context,
    workers: Annotated[int, typer.Option(help="Worker processes, each with a copy of the model.")] = 1,
    model: Annotated[
        str, typer.Option(help="A known name, a fetched one, a Hugging Face folder or a .gguf file.")
    ] = _DEFAULTS.model,
    port: Annotated[int, typer.Option(help="Of the OpenAI API, on 127.0.0.1.")] = _DEFAULTS.port,
    admin_port: Annotated[
        int | None, typer.Option(help="Of tenants, keys and metrics. [default: any free one]")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="auto, bf16 or fp32. `ridgeline doctor machine` says what auto takes and why.")
    ] = _DEFAULTS.dtype,
    weights: Annotated[
        str, typer.Option(help="auto (as --dtype says), or int8 or int4: rounded while they load, CPU only.")
    ] = _DEFAULTS.weights,
    deterministic: Annotated[
        bool, typer.Option(help="The same bits for a request in any batch. On CPUs, and slower.")
    ] = _DEFAULTS.deterministic,
    threads_per_worker: Annotated[
        int | None, typer.Option(help="[default: the cores divided by the workers]")
    ] = None,
    kv_memory: Annotated[
        str | None, typer.Option(help="KV cache of each worker: 512MiB, 2GB. [default: up to 1 GiB]")
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write URL, keys and pids there (mode 0600) once all is ready.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keys and stores, kept over runs. [default: $RIDGELINE_HOME/up]")
    ] = None,
) -> None:
    """Start the whole platform on this machine and serve until Ctrl-C.

    Router, workers and gateway run as processes of their own on loopback; one that dies is started again.
    Ctrl-C (or SIGTERM) drains and stops all, a second one stops at once. Exit code 2: something to mend, said
    in one line.
    """
    options = UpOptions(
        workers=workers,
        model=model,
        port=port,
        admin_port=admin_port,
        dtype=dtype,
        weights=weights,
        deterministic=deterministic,
        threads_per_worker=threads_per_worker,
        kv_bytes=None if kv_memory is None else parse_size(kv_memory, flag="--kv-memory"),
    )
    check_options(options)
    context = context_of(ctx)
    folder = (data_dir or default_data_dir(context)).absolute()
    with locked_data_dir(folder):
        serving = _prepare(context, options, data_dir=folder, ready_file=ready_file)
        raise typer.Exit(asyncio.run(serving.run(clock=context.clock, environ=context.environ)))


def _prepare(context: CliContext, options: UpOptions, *, data_dir: Path, ready_file: Path | None) -> Serving:
    """Everything that can be wrong is found here, before a process is started."""
    console = Console(stderr=True)
    ports = choose_ports(workers=options.workers, gateway=options.port, admin=options.admin_port)
    model = open_fetcher(context, progress_for(console)).fetch(options.model).folder
    facts = _facts(context, options, probe_machine(), model, ports, data_dir=data_dir)
    admin_key = open_admin_key(facts.keys)
    plan = plan_processes(facts)
    stated = () if ready_file is None else (ready_file.absolute(),)
    return Serving(
        facts=facts,
        plan=plan,
        admin_key=admin_key,
        ready_paths=(*stated, data_dir / DEFAULT_NAME),
        display=UpDisplay(console, plan),
        print_line=typer.echo,
    )


def _facts(
    context: CliContext,
    options: UpOptions,
    machine: MachineEvidence,
    model: ModelFolder,
    ports: Ports,
    *,
    data_dir: Path,
) -> PlanFacts:
    dtype = resolve_dtype(options, machine)
    return PlanFacts(
        python=sys.executable,
        model=ModelFacts(model.name, model.path, model.weight_bytes),
        dtype=dtype,
        weights=options.weights,
        deterministic=options.deterministic,
        threads_per_worker=resolve_threads(options, machine),
        kv_bytes=resolve_kv_bytes(options, machine, weight_bytes=model.weight_bytes, dtype=dtype),
        ports=ports,
        keys=key_files(data_dir),
        data_dir=data_dir / "gateway",
        cache_dir=context.home / "kernels",
        # Whoever has chosen devices in the environment keeps that choice.
        gpus=0 if "CUDA_VISIBLE_DEVICES" in context.environ else len(machine.gpus),
    )
