"""The `ridgeline doctor` commands: evidence read, one call, text or JSON out."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ridgeline_doctor.finding import Finding, Severity
from ridgeline_doctor.machine_evidence import MachineEvidence
from ridgeline_doctor.machine_findings import choose_dtype, machine_findings
from ridgeline_doctor.machine_probe import probe_machine

app = typer.Typer(
    no_args_is_help=True,
    help="Say what holds a thing back: ranked findings, each with its figure and the next check to make.",
)
_STYLES = {Severity.PROBLEM: "bold red", Severity.WARNING: "yellow", Severity.INFO: "green"}


@app.callback()
def doctor() -> None:
    """Topics are commands of their own."""


@app.command()
def machine(
    as_json: Annotated[bool, typer.Option("--json", help="Print one object and nothing else.")] = False,
) -> None:
    """What this machine is, which dtype `ridgeline up` takes on it and why, and what to mend first."""
    evidence = probe_machine()
    if as_json:
        typer.echo(json.dumps(machine_object(evidence)))
        return
    console = Console()
    for line in machine_lines(evidence):
        console.print(line, highlight=False)
    console.print()
    for finding in machine_findings(evidence):
        print_finding(console, finding)


def machine_object(evidence: MachineEvidence) -> dict[str, Any]:
    """What `--json` prints."""
    facts = {**asdict(evidence), "flags": sorted(evidence.flags), "usable_cores": evidence.usable_cores}
    return {
        "machine": facts,
        "dtype": asdict(choose_dtype(evidence)),
        "findings": [asdict(finding) for finding in machine_findings(evidence)],
    }


def machine_lines(evidence: MachineEvidence) -> Sequence[str]:
    """The machine, a line a part."""
    gpus = [f"{gpu.name}, {gpu.memory_bytes / 1024**3:.0f} GiB" for gpu in evidence.gpus]
    total, available = evidence.memory_total_bytes, evidence.memory_available_bytes
    return (
        f"CPU         {evidence.cpu_model} ({evidence.architecture}), {evidence.usable_cores} usable cores",
        f"features    {' '.join(sorted(evidence.flags)) or 'none that matter'}",
        f"memory      {available / 1024**3:.1f} GiB available of {total / 1024**3:.1f} GiB",
        f"C compiler  {evidence.c_compiler or 'none'}",
        f"GPU         {'; '.join(gpus) or 'none'}",
    )


def print_finding(console: Console, finding: Finding) -> None:
    """Three lines: the cause, the figure behind it, what to do next."""
    head = Text.assemble((f"{finding.severity:<8}", _STYLES[finding.severity]), f" {finding.cause}")
    console.print(head, soft_wrap=True)
    console.print(Text(f"         because: {finding.evidence}", style="dim"), soft_wrap=True)
    console.print(Text(f"         next:    {finding.next_check}", style="dim"), soft_wrap=True)
