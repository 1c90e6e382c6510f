"""Folders on this machine and in a bucket are used alike; the bucket is a real server's."""

import itertools
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import boto3
import pytest
from conftest import command, orchestrate, refused
from hypothesis import given
from hypothesis import strategies as st

import orchestrator
from orchestrator.files.places import Place
from orchestrator.results import RunFiles


@pytest.fixture(params=["path", "bucket"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    where = tmp_path if request.param == "path" else request.getfixturevalue("bucket") + "/runs"
    return Place.at(where) / "a b=c%2F"


def test_files_come_and_go(folder: Place) -> None:
    file = folder / "one.txt"
    assert not file.is_file()
    assert folder.file_names() == []
    file.write_text("first")
    file.write(b"second")
    (folder / "below" / "two.txt").write(b"")
    (folder / ".hidden").write(b"")
    assert file.read_text() == "second"
    assert folder.file_names() == ["one.txt"]
    assert [(folder / "below").is_folder(), file.is_folder()] == [True, False]
    file.remove()
    file.remove()
    assert not file.is_file()
    folder.remove_folder()
    folder.remove_folder()
    assert (folder / "below").file_names() == []
    with pytest.raises(FileNotFoundError):
        file.read()


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    run, before = RunFiles(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        with refused("unwritable", tmp_path, "too large"):
            run.check_writable()
        with pytest.raises(OSError, match=re.escape(str(tmp_path / "sessions.json"))):
            run.add_session({})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_others_find_what_is_written_and_the_other_way_round(bucket: str) -> None:
    """The other program is the store's own client."""
    client = boto3.client("s3")
    name = bucket.removeprefix("s3://")
    (Place.at(bucket) / "runs" / "a.txt").write_text("ours")
    assert client.get_object(Bucket=name, Key="runs/a.txt")["Body"].read() == b"ours"
    client.put_object(Bucket=name, Key="runs/b.txt", Body=b"theirs")
    assert (Place.at(bucket) / "runs").file_names() == ["a.txt", "b.txt"]
    assert (Place.at(bucket) / "runs" / "b.txt").read_text() == "theirs"
    client.close()


def test_a_file_that_is_replaced_meanwhile_is_read_whole(tmp_path: Path) -> None:
    file, reads = Place.at(tmp_path / "changing"), threading.Semaphore(0)
    texts = [name * size for name, size in zip("abcdefghi", itertools.cycle([1, 4000]))]
    file.write_text(texts[0])

    def replace() -> None:
        for text in itertools.islice(itertools.cycle(texts), 100):
            reads.acquire()
            file.write_text(text)

    with ThreadPoolExecutor() as pool:
        replacing = pool.submit(replace)
        found = set[str]()
        try:
            for _ in range(100):
                reads.release()
                found.add(file.read_text())
        finally:
            reads.release(100)
        replacing.result()
    assert found <= {*texts}


def test_it_says_where_it_is(bucket: str, tmp_path: Path) -> None:
    assert str(Place.at(f"{bucket}/runs/") / "a" / "b") == f"{bucket}/runs/a/b"
    assert str(Place.at(f"{bucket}/runs?region=x") / "a") == f"{bucket}/runs/a?region=x"
    assert str((Place.at(f"{bucket}/runs") / "a").parent) == f"{bucket}/runs"
    assert str(Place.at(f"{bucket}/runs/a").parent) == f"{bucket}/runs"
    assert (Place.at(tmp_path) / "a").local == tmp_path / "a"
    assert Place.at("here").absolute().local == Path.cwd() / "here"
    assert Place.at("~/here").local == Path.home() / "here"


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("ftp://there/run", "ftp"), ("s3://", "s3://"), ("a\udcff", "UTF-8"),
        ("s3:/lab/run", "lacks `//`"),
    ],
)  # fmt: skip
def test_other_places_are_refused(where: str, said: str) -> None:
    with refused("wrong-place", said):
        Place.at(where)


SECRETS = st.text("xq0/+?#@:%&= ", min_size=8, max_size=24)


@given(
    where=st.sampled_from(
        [
            "s3://ID0{}@lab/run", "s3://ID%2F0{}@lab", "gs://ID{}@lab/a@b", "abfs://{}@lab.dfs.x/run",
            "S3://ID{}", "what://ID{}@lab:9000/run", "s3://lab/run?secret_key={}",
            "abfss://c@lab.dfs.x/run?sp=r&sig={}", "gs://lab/run?x=1&Client%5fSecret={}",
            "s3://lab/run?endpoint_override=http://ID{}@127.0.0.1:9000",
        ]
    ),
    colon=st.sampled_from([":", "%3A"]),
    secret=SECRETS,
    written=st.sampled_from([str, quote, lambda text: quote(text, safe="")]),
)  # fmt: skip
def test_a_key_in_an_address_is_refused_and_never_shown(
    where: str, colon: str, secret: str, written: Callable[[str], str]
) -> None:
    address = where.format(written(secret) if "={}" in where else colon + written(secret))
    with refused("key-in-address") as refusal:
        Place.at(address)
    assert secret not in str(refusal.value)
    assert written(secret) not in str(refusal.value)


@pytest.mark.parametrize(
    ("where", "at"),
    [
        ("abfs://runs@lab.dfs.core.windows.net/a@b", "runs/a@b"),
        ("abfss://runs@lab.dfs.core.windows.net/a:b/c@d?credential_kind=cli", "runs/a:b/c@d"),
        ("gs://anonymous@lab/a:b/c@d", "lab/a:b/c@d"),
        ("s3://lab/a:b/c@d?endpoint_override=http://127.0.0.1:9000", "lab/a:b/c@d"),
        ("s3://lab/a@b/run?endpoint_override=http://%5B::1%5D:9000&region=x", "lab/a@b/run"),
    ],
)
def test_what_is_no_key_is_not_taken_for_one(where: str, at: str) -> None:
    assert Place.at(where)._on_file_system[1] == at


def test_a_bucket_that_is_not_there_is_refused_before_anything_starts(bucket: str) -> None:
    with refused("unwritable", "NO_SUCH_BUCKET"):
        RunFiles(f"{bucket}-not/run").check_writable()
    with refused("not-a-run", f"{bucket}/run"):
        RunFiles.open(f"{bucket}/run")


DIES = """
import os, signal
from orchestrator.cli import main
from orchestrator.results import RunFiles

def write(run, *trials, begun=RunFiles.write):
    begun(run, *trials[:3])
    os.kill(os.getpid(), signal.SIGKILL)

RunFiles.write = write
main()
"""
"""The command, which is killed when few of its trials are recorded."""


@pytest.mark.slow
def test_a_run_in_a_bucket_is_as_good_as_any(
    bucket: str, tmp_path: Path, sweep_file: Callable[..., Path]
) -> None:
    file = sweep_file(search={"trials": 6}, goals=["val/error < 0.1"], budget={"steps": 400})
    there, here = f"{bucket}/runs/tiny", tmp_path / "here"
    orchestrator.sweep(file, out=here, ray=False)
    words = [sys.executable, "-c", DIES, *command("sweep", file, "--no-ray", "--out", there)[1:]]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    result = orchestrate("resume", there, "--ray")
    assert result.returncode == 0, result.stderr
    for name in ("frontier.csv", "sweep.yaml"):
        assert (Place.at(there) / name).read() == (here / name).read_bytes()
    assert "<html" in (Place.at(there) / "report.html").read_text()
    assert "connected to" in (Place.at(there) / "log.txt").read_text()
    assert '"finished": 12' in orchestrate("status", there, "--json").stdout
    whole = orchestrate("sweep", file, "--out", there)
    assert "nothing to train" in whole.stderr
    # The export is on this machine.
    assert orchestrate("export", there, tmp_path / "out").returncode == 0
    for name in ("frontier.csv", "sweep.yaml"):
        assert (tmp_path / "out" / name).read_bytes() == (here / name).read_bytes()
