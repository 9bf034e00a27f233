"""A fence around a worker: which files it may touch, and no network.

Files are fenced by Landlock (Linux 5.13; for writing 6.2), the network by a namespace
of its own. Where the system has not got them the worker does not start: a fence that
is not there must not be believed in.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from executionkit._frozen import sealed

__all__ = ("Sandbox", "SandboxError", "fence_in")

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # of all architectures
_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_NO_NEW_PRIVS: Final = 38
_NEW_USER: Final = 0x10000000
_NEW_NET: Final = 0x40000000

_READ: Final = 0b1101  # execute, read a file, read a folder
_WRITE: Final = 0b111_1111_1111_0010  # write, remove, make, move, truncate
_OF_A_FILE: Final = 0b100_0000_0000_0111
_SCOPES: Final = 0b11  # abstract sockets, signals
_ABI_OF_WRITE: Final = 3
_ABI_OF_SCOPES: Final = 6

_SYSTEM: Final = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/dev/urandom")


class SandboxError(Exception):
    """The system cannot build the fence that was asked for."""


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """What tools in workers may touch; holds for all that they start, too.

    Their results and items must be plain data (numbers, texts, lists, dicts, dates,
    built-in exceptions): nothing that they send can run code in this process. Sockets
    that are files can still be connected to where their path can be reached.
    """

    read: tuple[str, ...] | None = None
    """Files and folders they may read, beside Python's own and what is on `sys.path`.
    None = all."""

    write: tuple[str, ...] | None = ()
    """Files and folders they may change, make and remove. None = all."""

    network: bool = False
    """Whether they have a network."""

    def __post_init__(self) -> None:
        for name in ("read", "write"):
            value: object = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, (str, bytes)) or not isinstance(value, (tuple, list)):
                msg = (
                    f"`{name}` must be a tuple of paths, or None for all; got {value!r}"
                )
                raise TypeError(msg)
            object.__setattr__(self, name, tuple(os.fspath(item) for item in value))


def fence_in(
    read: list[str] | None,
    write: list[str] | None,
    network: bool,  # noqa: FBT001 - from JSON
) -> None:
    """Fence in this process, for ever.

    Args:
        read: As `Sandbox` says.
        write: The same.
        network: The same.

    Raises:
        SandboxError: When the system cannot: what is missing.
    """
    if sys.platform != "linux":
        msg = f"a sandbox needs Linux, and this is {sys.platform}"
        raise SandboxError(msg)
    libc = ctypes.CDLL(None, use_errno=True)
    if not network:
        _cut_network(libc)
    if read is not None or write is not None:
        _fence_files(libc, read, write)


def _fail(what: str) -> NoReturn:
    msg = f"{what}: {os.strerror(ctypes.get_errno())}"
    raise SandboxError(msg)


def _cut_network(libc: Any) -> None:
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(_NEW_USER | _NEW_NET):
        _fail("the network cannot be cut off (unshare)")
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with contextlib.suppress(OSError):  # it is then nobody, which does no harm
            Path("/proc/self", name).write_text(line, encoding="ascii")


def _fence_files(libc: Any, read: list[str] | None, write: list[str] | None) -> None:
    abi: int = libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)
    if abi < 1:
        _fail("files cannot be fenced in (landlock)")
    if write is not None and abi < _ABI_OF_WRITE:
        msg = f"writing cannot be fenced in: landlock {abi} of the system, 3 is needed"
        raise SandboxError(msg)
    handled = (0 if read is None else _READ) | (0 if write is None else _WRITE)
    scopes = _SCOPES if abi >= _ABI_OF_SCOPES else 0
    attributes = struct.pack("=QQQ", handled, 0, scopes)
    size = 24 if scopes else 8
    rules: int = libc.syscall(_CREATE, attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        _fail("files cannot be fenced in (landlock)")
    try:
        for path in _own_paths():
            if os.path.exists(path):  # noqa: PTH110 - of a text
                _allow(libc, rules, path, _READ & handled)
        for path in read or ():
            _allow(libc, rules, path, _READ & handled)
        for path in (*(write or ()), "/dev/null"):
            _allow(libc, rules, path, handled)
        if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
            _fail("files cannot be fenced in (no_new_privs)")
        if libc.syscall(_RESTRICT, rules, 0):
            _fail("files cannot be fenced in (landlock)")
    finally:
        os.close(rules)


def _own_paths() -> list[str]:
    """What Python needs to read."""
    here = str(Path(__file__).resolve().parents[3])
    roots = [sys.prefix, sys.base_prefix, sys.exec_prefix, here, *_SYSTEM]
    return [*roots, f"/proc/{os.getpid()}", *(item or "." for item in sys.path)]


def _allow(libc: Any, rules: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as exc:
        msg = f"{path!r} cannot be allowed: {exc.strerror}"
        raise SandboxError(msg) from exc
    try:
        if not Path(path).is_dir():
            access &= _OF_A_FILE
        if not access:
            return
        rule = struct.pack("=Qi", access, fd)
        if libc.syscall(_ADD, rules, _PATH_BENEATH, rule, 0):
            _fail(f"{path!r} cannot be allowed (landlock)")
    finally:
        os.close(fd)
