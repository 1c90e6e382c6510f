"""Where things are kept: on this machine or in a bucket, in the same few words."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from orchestrator.records import BadInput

ADDRESS = re.compile(r"([A-Za-z0-9+.-]*)://")
HOST = re.compile(r"(\[[^]]*\]|[^]:[]*)(:[0-9]{1,5})?")
"""With or without a port."""
SECRET_NAMES = re.compile(r"key|secret|token|password|sig|credential(?!_kind)", re.IGNORECASE)
"""In names of parameters: `secret_key` of S3, `client_secret` of Azure, `sig` of shared links."""

WITH_CONTAINER = {"abfs", "abfss", "wasb", "wasbs", "adl"}
"""Schemes of Azure, which write CONTAINER@ACCOUNT."""
WITHOUT_PASSWORD = {"hdfs", "viewfs"}
"""Schemes that have a user and a port, but never a password."""
WITH_PORT = WITH_CONTAINER | WITHOUT_PASSWORD | {"http", "https"}


@dataclass(frozen=True)
class Place:
    """A file or a folder: a path, or a URI that pyarrow's file systems know.

    What pyarrow needs to know besides (endpoints, credentials) comes from the environment, as the
    stores' own tools have it.
    """

    root: str
    below: str = ""

    @classmethod
    def at(cls, where: str | Path | Place) -> Place:
        """A place as a user names it; refuses what can't be one."""
        if isinstance(where, Place):
            return where
        text = str(where)
        if "://" not in text:
            return cls(text)
        refuse_keys(text)
        place = cls(text)
        try:
            reason = "" if _remote(text)[1] else "it names no folder"
        except (pa.ArrowException, OSError) as error:
            reason = str(error)
        if reason:
            raise BadInput(
                f"{text} can't be used: {reason}. Write a path, or a URI such as "
                f"s3://BUCKET/FOLDER or gs://BUCKET/FOLDER."
            )
        return place

    @property
    def local(self) -> Path | None:
        """As a path, if it is on this machine."""
        return None if "://" in self.root else Path(self.root + self.below)

    def absolute(self) -> Place:
        """The same from wherever one looks."""
        path = self.local
        return self if path is None else Place(str(path.resolve()))

    def __truediv__(self, name: str) -> Place:
        return Place(self.root, f"{self.below}/{name}")

    def __str__(self) -> str:
        if self.local is not None:
            return str(self.local)
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
    def _there(self) -> tuple[fs.FileSystem, str]:
        if "://" not in self.root:
            return _local(), self.root + self.below
        files, folder = _remote(self.root)
        return files, folder.rstrip("/") + self.below

    def is_file(self) -> bool:
        files, path = self._there
        return bool(files.get_file_info(path).type == fs.FileType.File)

    def is_folder(self) -> bool:
        files, path = self._there
        return bool(files.get_file_info(path).type == fs.FileType.Directory)

    def file_names(self) -> list[str]:
        """Of the folder's files, in order; those that begin with a dot are not finished."""
        files, path = self._there
        found = files.get_file_info(fs.FileSelector(path, allow_not_found=True))
        names = (each.base_name for each in found if each.type == fs.FileType.File)
        return sorted(name for name in names if not name.startswith("."))

    def open(self) -> pa.NativeFile:
        """For reading."""
        files, path = self._there
        return files.open_input_file(path)

    def read(self) -> bytes:
        with self.open() as file:
            return bytes(file.read())

    def read_text(self) -> str:
        return self.read().decode()

    def write(self, content: Any) -> None:
        """Puts a file there, whole or not at all; folders are made on the way."""
        if (path := self.local) is None:
            files, name = self._there
            with files.open_output_stream(name) as stream:
                stream.write(content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # A leading dot hides an unfinished file from every Parquet reader.
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def write_text(self, text: str) -> None:
        self.write(text.encode())

    def check_writable(self) -> None:
        """Raises `OSError` where no file could be put into this folder."""
        probe = self / f".probe.{os.getpid()}"
        probe.write(b"")
        probe.remove()

    def remove(self) -> None:
        """Removes the file, if it is there."""
        files, path = self._there
        if self.is_file():
            files.delete_file(path)

    def remove_folder(self) -> None:
        """Removes the folder and all in it, if it is there."""
        files, path = self._there
        if self.is_folder():
            files.delete_dir(path)


def refuse_keys(address: str) -> None:
    """Refuses an address with credentials, which is not shown: the address of a run is in its log,
    in reports and in what others are sent."""
    if _may_hold_key(address):
        raise BadInput(
            "A place was given with a key in its address, or with what may be one: a colon or a "
            "user before `@`, or a parameter named like a key. Leave it out, and put it where the "
            "store's own tools look (AWS_ACCESS_KEY_ID, AZURE_CLIENT_SECRET, ...)."
        )


def _may_hold_key(text: str) -> bool:
    """Whether credentials stand in an address, or in one inside of it (`endpoint_override`).

    Keys of S3 and Azure have slashes, with which an address is no proper one any more: what looks
    like the end of a host may be the middle of a key. So a colon before the first slash is that of
    a port only if a few digits follow it, and no `@` anywhere behind.
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
def _local() -> fs.LocalFileSystem:
    return fs.LocalFileSystem()


@cache
def _remote(uri: str) -> tuple[fs.FileSystem, str]:
    if uri.startswith("s3://"):
        # A small file in one request instead of three.
        uri += ("&" if "?" in uri else "?") + "allow_delayed_open=true"
    files, path = fs.FileSystem.from_uri(uri)
    return files, path
