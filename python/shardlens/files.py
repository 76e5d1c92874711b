"""The only code of the package that makes, replaces or removes files.

A file is written under a random name that did not exist and gets its own name when it is complete and on the disk; a reader sees the old file
or the new one, whenever the program ends. A file that is replaced passes its permissions on. Folders are held open while they are written to,
and nothing is removed that was not made here.
"""
from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
import time
import weakref
from typing import IO, TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC
_NAME_MAX = 255


def make_folder(path: str | os.PathLike[str]) -> None:
    """Makes a folder and those above it, if they do not exist."""
    os.makedirs(path, exist_ok=True)


def _same(a: os.stat_result, b: os.stat_result) -> bool:
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def _find(name: str, folder: int) -> os.stat_result | None:
    """The stat of the entry with this name, without following a symlink; None if there is none."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _remove(name: str, folder: int, made: os.stat_result) -> None:
    """Removes a file or an empty folder, if it still is the one that was made."""
    found = _find(name, folder)
    if found is not None and _same(found, made):
        (os.rmdir if stat.S_ISDIR(found.st_mode) else os.unlink)(name, dir_fd=folder)


def _temporary_name(name: str) -> str:
    ending = ".tmp" + secrets.token_hex(16)
    return os.fsencode(name)[: _NAME_MAX - len(ending)].decode(errors="ignore") + ending


def _take_permissions(file: int, old: os.stat_result) -> None:
    """Permissions of the replaced file, and its group if this user may; else what the group was allowed only if all others were too."""
    mode = stat.S_IMODE(old.st_mode) & 0o777
    if os.fstat(file).st_gid != old.st_gid:
        try:
            os.fchown(file, -1, old.st_gid)
        except OSError:
            mode = mode & ~0o070 | (mode & 0o007) << 3
    os.fchmod(file, mode)


def _sync_folder(folder: int) -> None:
    try:
        readable = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=folder)
    except PermissionError:  # one may write to it, but not read it
        return
    try:
        os.fsync(readable)
    except OSError as error:
        if error.errno != errno.EINVAL:  # not on this file system
            raise
    finally:
        os.close(readable)


@contextlib.contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors name the path that the caller gave."""
    try:
        yield
    except OSError as error:
        error.filename = os.fspath(path)
        raise


def _open_special(name: str, folder: int, seconds: float = 10) -> int:
    """A descriptor of a device or a FIFO. A FIFO that no one reads within this time is an error; otherwise opening would wait forever."""
    flags = os.O_WRONLY | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    end = time.monotonic() + seconds
    while True:
        try:
            descriptor = os.open(name, flags, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() >= end:
                raise
            time.sleep(0.005)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


@contextlib.contextmanager
def create(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file to write. A symlink stays, and its target is written; a device or a FIFO is written directly. After an exception the old
    file is there, unchanged."""
    place, name = os.path.split(os.path.realpath(path))
    with _naming(path):
        folder = os.open(place, os.O_PATH | _FOLDER)
    try:
        old = _find(name, folder)
        if old is not None and not stat.S_ISREG(old.st_mode):
            with _naming(path):
                descriptor = _open_special(name, folder)
            with open(descriptor, "wb") as file:
                yield file
            return
        temporary = _temporary_name(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        # Until it has the permissions of the file that it replaces, only the user may read it.
        with _naming(path):
            descriptor = os.open(temporary, flags, 0o666 if old is None else 0o600, dir_fd=folder)
        made = os.fstat(descriptor)
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                if old is not None:
                    _take_permissions(descriptor, old)
                os.fsync(descriptor)
            with _naming(path):
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _remove(temporary, folder, made)
            raise
        _sync_folder(folder)
    finally:
        os.close(folder)


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file of text or bytes."""
    with create(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _empty(folder: int, device: int) -> None:
    """Removes all that is in an open folder, not through symlinks and not on other file systems."""
    for name in os.listdir(folder):
        found = _find(name, folder)
        if found is None:
            continue
        if stat.S_ISDIR(found.st_mode):
            if found.st_dev != device:
                continue
            below = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | _FOLDER, dir_fd=folder)
            try:
                _empty(below, device)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)


def _remove_private(parent: int, name: str, folder: int) -> None:
    try:
        own = os.fstat(folder)
        _empty(folder, own.st_dev)
        _remove(name, parent, own)
    except OSError:  # what is left is in a folder for temporary files
        pass
    finally:
        os.close(folder)
        os.close(parent)


class PrivateFolder:
    """A folder that only this user can access, removed with this object or at the end of `with`. `path`: where; `below`: the folder to make it
    in, by default the one for temporary files."""

    def __init__(self, below: str | os.PathLike[str] | None = None) -> None:
        below = os.fspath(below or tempfile.gettempdir())
        name = "shardlens-" + secrets.token_hex(16)
        parent = os.open(below, os.O_PATH | _FOLDER)
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
            folder = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | _FOLDER, dir_fd=parent)
        except BaseException:
            os.close(parent)
            raise
        self.path = os.path.join(below, name)
        self.remove = weakref.finalize(self, _remove_private, parent, name, folder)

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Literal[False]:
        self.remove()
        return False
