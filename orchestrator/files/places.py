"""Files and folders on this machine or in a bucket, with the same methods for both."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import pyarrow as pa
from pyarrow import fs

from orchestrator.records import BadInput

LOCAL = fs.LocalFileSystem()

ADDRESS = re.compile(r"([A-Za-z0-9+.-]*)://")
ALMOST_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""How a path must not begin: pyarrow takes it for an address."""
HOST = re.compile(r"(\[[^]]*\]|[^]:[]*)(:[0-9]{1,5})?")
"""A host, with or without a port."""
SECRET_NAMES = re.compile(r"key|secret|token|password|sig|credential(?!_kind)", re.IGNORECASE)
"""Parts of the names of parameters that hold secrets: `secret_key` of S3, `client_secret` of Azure,
`sig` of shared links."""

WITH_CONTAINER = {"abfs", "abfss", "wasb", "wasbs", "adl"}
"""Schemes of Azure, whose addresses contain CONTAINER@ACCOUNT."""
WITHOUT_PASSWORD = {"hdfs", "viewfs"}
"""Schemes whose addresses may contain a user and a port, but never a password."""
WITH_PORT = WITH_CONTAINER | WITHOUT_PASSWORD | {"http", "https"}

PACKED = "zip://"
"""Scheme of the content of a ZIP file on this machine, which is read as a folder."""


@dataclass(frozen=True)
class Place:
    """A file or a folder, given by a path or by a URI that pyarrow's file systems know.

    Pyarrow takes endpoints and credentials from the environment variables that the stores' own
    tools use.
    """

    root: str
    below: str = ""

    @classmethod
    def at(cls, where: str | Path | Place) -> Place:
        """Makes a place from the path or URI that a user gave. Refuses text that is neither."""
        if isinstance(where, Place):
            return where
        if not (text := os.path.expanduser(where)):  # shells leave ~ to us in --out=~/run
            raise BadInput("A folder has an empty name. Write its path or URI.", code="wrong-place")
        if text != text.encode(errors="replace").decode():  # Arrow takes no other names
            raise BadInput(f"{text} can't be used: it is no UTF-8. Rename it.", code="wrong-place")
        if "://" not in text and not ALMOST_ADDRESS.match(text):
            is_packed = text.endswith(".zip") and os.path.isfile(text)
            return cls(PACKED + os.path.abspath(text) if is_packed else text)
        refuse_keys(text)
        place = cls(text)
        try:
            if "://" not in text:
                raise OSError("it begins as an address does, but lacks `//` after the colon")
            reason = "" if _remote(text)[1] else "it names no folder"
        except (pa.ArrowException, OSError) as error:
            reason = str(error)
        if reason:
            raise BadInput(
                f"{text} can't be used: {reason}. Write a path or a URI such as s3://BUCKET/FOLDER.",
                code="wrong-place",
            )
        return place

    @property
    def local(self) -> Path | None:
        """The path of a place on this machine; None for a place elsewhere."""
        return None if "://" in self.root else Path(self.root + self.below)

    @property
    def packed(self) -> Path | None:
        """The ZIP file that holds this place; None if none does."""
        return Path(self.root.removeprefix(PACKED)) if self.root.startswith(PACKED) else None

    def absolute(self) -> Place:
        """Returns the same place, independent of the current folder."""
        path = self.local
        return self if path is None else Place(str(path.resolve()))

    def __truediv__(self, name: str) -> Place:
        return Place(self.root, f"{self.below}/{name}")

    def __str__(self) -> str:
        if (path := self.local or self.packed) is not None:
            return str(path) if self.local else str(path) + self.below
        address, mark, query = self.root.partition("?")
        return f"{address.rstrip('/')}{self.below}{mark}{query}"

    @property
    def parent(self) -> Place:
        if (path := self.local) is not None:
            return Place(str(path.parent))
        if self.below:
            return Place(self.root, self.below.rpartition("/")[0])
        address, mark, query = self.root.rstrip("/").partition("?")
        return Place(address.rpartition("/")[0] + mark + query)

    @property
    def _on_file_system(self) -> tuple[fs.FileSystem, str]:
        """The file system of the place, and its path there."""
        if "://" not in self.root:
            return LOCAL, self.root + self.below
        files, folder = _remote(self.root)
        path = folder.rstrip("/") + self.below
        return files, path.lstrip("/") if self.packed else path

    def is_file(self) -> bool:
        files, path = self._on_file_system
        return bool(files.get_file_info(path).type == fs.FileType.File)

    def is_folder(self) -> bool:
        files, path = self._on_file_system
        return bool(files.get_file_info(path).type == fs.FileType.Directory)

    def file_names(self) -> list[str]:
        """Sorted names of the folder's files, except unfinished ones, which begin with a dot."""
        if (folder := self.local) is not None:
            # Arrow takes ten times as long.
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                # `is_file` raises for a link to itself if it follows links, `isfile` does not.
                return sorted(
                    e.name
                    for e in entries
                    if e.name[0] != "."
                    and (e.is_file(follow_symlinks=False) or os.path.isfile(e.path))
                )
            return []
        files, path = self._on_file_system
        found = files.get_file_info(fs.FileSelector(path, allow_not_found=True))
        names = (info.base_name for info in found if info.type == fs.FileType.File)
        return sorted(name for name in names if not name.startswith("."))

    def open(self) -> pa.NativeFile:
        """Opens the file for reading."""
        files, path = self._on_file_system
        return files.open_input_file(path)

    def read(self) -> bytes:
        """Reads the whole file."""
        with self.open() as file:
            return bytes(file.read())

    def read_text(self) -> str:
        return self.read().decode()

    def write(self, content: Any) -> None:
        """Writes the file, completely or not at all. Creates missing folders."""
        if self.packed is not None:
            raise OSError(errno.EROFS, f"it is packed. Unpack it first: unzip {self.packed} -d DIR")
        if (path := self.local) is None:
            files, name = self._on_file_system
            with files.open_output_stream(name) as stream:
                stream.write(content)
            return
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        # Parquet readers skip files whose names begin with a dot, so none reads an unfinished file.
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError as error:  # that of a full disk names no file
            raise OSError(error.errno, error.strerror, str(path)) from None
        finally:
            unfinished.unlink(missing_ok=True)

    def write_text(self, text: str) -> None:
        self.write(text.encode())

    def check_writable(self) -> None:
        """Raises `OSError` if no file can be written to this folder."""
        probe = self / f".probe.{os.getpid()}"
        probe.write(b"0")  # a full disk takes an empty file
        probe.remove()

    def remove(self) -> None:
        """Removes the file if it exists."""
        files, path = self._on_file_system
        if self.is_file():
            files.delete_file(path)

    def remove_folder(self) -> None:
        """Removes the folder and everything in it, if it exists."""
        files, path = self._on_file_system
        if self.is_folder():
            files.delete_dir(path)


def pack(folder: Path) -> None:
    """Packs a folder into a ZIP file of the same name. The same files give the same bytes."""
    packed = folder.with_name(f"{folder.name}.zip")
    try:
        with ZipFile(packed, "w") as file:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    entry = ZipInfo(str(path.relative_to(folder)))  # without the time of today
                    # Parquet is compressed already.
                    how = ZIP_STORED if path.suffix == ".parquet" else ZIP_DEFLATED
                    file.writestr(entry, path.read_bytes(), how)
        shutil.rmtree(folder)
        packed.rename(folder)
    finally:
        packed.unlink(missing_ok=True)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yields a folder of another name, which is called `target` once the `with` block has filled
    it. Raises `BadInput` if `target` exists or can't be written."""
    if os.path.lexists(target):
        raise BadInput(f"{target} exists already. Name a new folder.", code="exists")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield unfinished
        unfinished.rename(target)
    except OSError as error:
        raise BadInput(f"{target} can't be written: {error}.", code="unwritable") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def refuse_keys(address: str) -> None:
    """Refuses an address with credentials, since the address of a run is written to its log, to
    reports and to files that are sent to others. The error message does not show the address."""
    if _may_hold_key(address):
        raise BadInput(
            "The address of a place must not contain a key, but this one does, or may do so: it "
            "has a colon or a user before `@`, or a parameter named like a key. Leave the key out, "
            "and set the environment variables of the store's own tools (AWS_ACCESS_KEY_ID, ...).",
            code="key-in-address",
        )


def _may_hold_key(text: str) -> bool:
    """Tells whether an address may contain credentials, or whether an address inside of it may
    (`endpoint_override`).

    Keys of S3 and Azure may contain slashes. Such an address can't be parsed reliably: a slash that
    seems to end the host may be in the middle of a key. So a colon before the first slash is taken
    for the colon of a port only if up to five digits and no `@` follow it.
    """
    names = re.findall(r"[?&;#]([^=&;#?]*)=", text)
    if any(SECRET_NAMES.search(unquote(name)) for name in names):
        return True
    for form in (text, unquote(text)):
        for found in ADDRESS.finditer(form):
            scheme, rest = found[1].lower(), form[found.end() :]
            before = re.split("[/?#&]", rest, maxsplit=1)[0]
            behind = rest[len(before) :]
            user, _, name = unquote(before).rpartition("@")
            host = HOST.fullmatch(name)
            if ":" in user or host is None:
                return True
            if user and scheme not in WITH_CONTAINER | WITHOUT_PASSWORD and user != "anonymous":
                return True
            if host[2] and scheme not in WITH_PORT:
                return True
            if host[2] and "@" in behind and scheme not in WITHOUT_PASSWORD:
                return True
    return False


@cache
def _remote(uri: str) -> tuple[fs.FileSystem, str]:
    if uri.startswith(PACKED):
        from fsspec.implementations.zip import ZipFileSystem  # it comes with Torch and with Ray

        class Packed(ZipFileSystem):  # type: ignore[misc]
            def _open(self, path: str, *_: object, **__: object) -> BytesIO:
                # Some Pythons from 3.12.0 on read wrong bytes after a seek in one of several open
                # members, and seeking turns their checksums off.
                return BytesIO(self.zip.read(path))

        try:
            packed = Packed(uri.removeprefix(PACKED))
        except BadZipFile as error:
            raise OSError(str(error)) from None
        return fs.PyFileSystem(fs.FSSpecHandler(packed)), ""
    if uri.startswith("s3://"):
        # With this option, a small file is written in one request instead of three.
        uri += ("&" if "?" in uri else "?") + "allow_delayed_open=true"
    files, path = fs.FileSystem.from_uri(uri)
    return files, path
