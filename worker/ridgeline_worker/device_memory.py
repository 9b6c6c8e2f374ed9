"""Free memory of NVIDIA devices, asked of the driver's management library: no CUDA context is made for it."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def least_free_device_bytes() -> int | None:
    """Of the device that has least; None without the driver.

    The least, because the driver counts all devices of the machine, in another order than CUDA may.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    with _initialised(library) as usable:
        found = [_free_bytes(library, index) for index in range(_device_count(library))] if usable else []
    return min((size for size in found if size is not None), default=None)


@contextmanager
def _initialised(library: ctypes.CDLL) -> Iterator[bool]:
    usable = library.nvmlInit_v2() == _SUCCESS
    try:
        yield usable
    finally:
        if usable:
            library.nvmlShutdown()


def _device_count(library: ctypes.CDLL) -> int:
    count = ctypes.c_uint()
    return count.value if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == _SUCCESS else 0


def _free_bytes(library: ctypes.CDLL, index: int) -> int | None:
    handle, memory = ctypes.c_void_p(), _Memory()
    if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != _SUCCESS:
        return None
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != _SUCCESS:
        return None
    return int(memory.free)
