"""Finding TCP ports on loopback, and telling who has one that is wanted."""

import errno
import socket
from contextlib import ExitStack

import psutil
from ridgeline_contracts.errors import SettingsError

from ridgeline_cli.up.plan import LOOPBACK, Ports


def check_port_free(port: int, *, flag: str) -> None:
    """Raises SettingsError, naming the owner where it can be seen, if nothing can listen on `port`."""
    try:
        with socket.socket() as probe:
            _bind(probe, port)
    except OSError as error:
        why = (
            f"is in use{_owner(port)}"
            if error.errno == errno.EADDRINUSE
            else f"cannot be used ({error.strerror})"
        )
        raise SettingsError(
            f"port {port} {why}: stop that, or give another {flag}", param=flag.strip("-")
        ) from error


def free_ports(count: int) -> tuple[int, ...]:
    """`count` different ports that were free a moment ago, the kernel's choice."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            _bind(probe, 0)
        return tuple(int(probe.getsockname()[1]) for probe in probes)


def choose_ports(*, workers: int, gateway: int, admin: int | None) -> Ports:
    """All ports of a run.

    The gateway's is checked, the admin's too where it is stated; the rest are found free.
    """
    check_port_free(gateway, flag="--port")
    if admin is not None:
        check_port_free(admin, flag="--admin-port")
    taken = {gateway, admin}
    spare = [port for port in free_ports(2 * workers + 5) if port not in taken]
    return Ports(
        gateway=gateway,
        admin=spare.pop() if admin is None else admin,
        router=spare.pop(),
        router_metrics=spare.pop(),
        workers=tuple(spare.pop() for _ in range(workers)),
        worker_metrics=tuple(spare.pop() for _ in range(workers)),
    )


def _bind(probe: socket.socket, port: int) -> None:
    # As servers do: connections of an earlier run that linger in TIME_WAIT do not count as use.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind((LOOPBACK, port))


def _owner(port: int) -> str:
    """` by NAME (pid N)` of the process that listens on the port, or nothing where that cannot be seen."""
    try:
        for found in psutil.net_connections(kind="tcp"):
            listens = found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == port
            if listens and found.pid is not None:
                return f" by {psutil.Process(found.pid).name()} (pid {found.pid})"
    except (psutil.Error, OSError):
        return ""
    return ""
