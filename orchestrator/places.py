"""Where things are kept: on this machine or in a bucket, in the same few words."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from orchestrator.records import BadInput

SECRETS = re.compile(r"://[^/?]*@|[?&](access_key|secret_key|session_token)=")


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
        if SECRETS.search(text):
            # The address of a run is in its log, in reports and in what others are sent.
            raise BadInput(
                f"A place at {urlsplit(text).scheme}:// was given with a key in its address. Leave "
                f"it out, and put it where the store's own tools look (AWS_ACCESS_KEY_ID, ...)."
            )
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
