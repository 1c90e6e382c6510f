"""What another user of the machine can see of a sweep, and do to it, while it runs and after."""

import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import ray  # noqa: F401 - brings psutil along
from conftest import by_nobody
from driving import PATIENT, Driver, describe, driving, recorded, standing_still, waiting

import psutil  # isort: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user"),
]

SECRET = f"a-secret-key-{uuid.uuid4().hex}"  # which this file does not hold


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can look into: not below pytest's own, which is private."""
    with tempfile.TemporaryDirectory(prefix="shared-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "home").mkdir()
        yield Path(folder)


def reached(secrets: Sequence[bytes], top: Path, since: float) -> dict[str, list[str]]:
    """All that can be reached below `top` and has changed `since` then: which files hold one of
    `secrets`, what can be read, and what can be written."""
    found: dict[str, list[str]] = {"secrets": [], "readable": [], "writable": []}
    for folder, _, names in os.walk(top):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            with suppress(FileNotFoundError, PermissionError):  # gone, or not to be reached
                if os.path.getctime(path) < since:
                    continue
                if os.access(path, os.W_OK) and not os.path.islink(path):
                    found["writable"].append(path)
                if os.path.isfile(path) and os.access(path, os.R_OK):
                    found["readable"].append(path)
                    with open(path, "rb") as file:
                        content = file.read(2**24)
                    if any(secret in content for secret in secrets):
                        found["secrets"].append(path)
    return found


def open_to_other_machines(driver: Driver) -> list[Any]:
    """Where its processes listen, but at loopback. Calling there would not tell whose they are:
    another Ray of this machine may listen at the same port of another address."""
    family = driver.family()
    listening = [
        each.laddr
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.pid in family
    ]
    assert listening
    return [at for at in listening if not ip_address(at.ip.removeprefix("::ffff:")).is_loopback]


def test_nobody_else_sees_a_secret_or_gets_at_a_sweep(open_folder: Path) -> None:
    run, home = open_folder / "run", open_folder / "home"
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"HOME": str(home), "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ACCESS_KEY_ID": SECRET}
    env["ORCHESTRATE_DASHBOARD"] = "1"  # it listens, too
    everything, began = open_folder.parent, time.time() - 1
    # Metrics, which bear these names, are told all the same.
    names = {"name": "größe", "recipes": [{"name": "大", "optimizer": "sgd"}]}
    waits = {"workloads": ["mine.py:Patient"], "resources": {"stack": 1}}
    sweep = describe(open_folder, PATIENT, **names, **waits)
    few_have_it = ("sh", "-c", 'umask 032 && exec "$@"', "sh")
    with driving(open_folder, "sweep", sweep, "--out", run, env=env, before=few_have_it) as driver:
        with waiting(open_folder, after=2):  # it must not end while all is looked at
            driver.wait_until(lambda: recorded(run) >= 2)
            ranks = [Path(f"/proc/{pid}/status").read_text() for pid in driver.ranks()]
            assert ranks
            assert all("Umask:\t0032" in status for status in ranks)
            token = (home / ".ray" / "auth_token").read_bytes().strip()
            sessions = f"orchestrate-ray-*/r/session_*_{driver.process.pid}"
            session = next(Path(tempfile.gettempdir()).glob(sessions)).parents[1]
            with standing_still(driver):
                look = partial(reached, [SECRET.encode(), token], everything, began)
                meanwhile = by_nobody(look)
                elsewhere = open_to_other_machines(driver)
                logs = [path for path in session.rglob("*") if path.is_file()]
                assert logs
                assert not [path for path in logs if SECRET.encode() in path.read_bytes()]
                driver.process.terminate()  # of which it hears as soon as it goes on
        code, said = driver.end()
    assert code == 130, said
    assert "missed trials" not in said
    afterwards = by_nobody(look)
    for seen in (meanwhile, afterwards):
        assert seen["secrets"] == []
        ours = [
            path for path in seen["writable"] if path.startswith((str(open_folder), str(session)))
        ]
        assert ours == []
        assert not [path for path in seen["readable"] if path.startswith(str(session))]
        assert [path for path in seen["readable"] if path.startswith(str(run))], "it was looked at"
    assert elsewhere == []
    assert not session.exists()
