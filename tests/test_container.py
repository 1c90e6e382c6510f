"""The Containerfile: a real builder makes the image, of the Debian that its first line names, and a
sweep runs in it. Nothing is fetched from a registry of images."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, TINY

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        os.getuid() != 0 or not all(map(shutil.which, ("buildah", "debootstrap"))),
        reason="needs buildah and debootstrap, and root",
    ),
]

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def settings_of_pip(folder: Path) -> list[str]:
    """Options by which pip finds packages in the container where it does on this machine."""
    asked = [sys.executable, "-m", "pip", "config", "list"]
    told = subprocess.check_output(asked, text=True).splitlines()
    # One file in place of several and the environment's variables, so that a key may be told twice.
    keys: dict[str, list[str]] = {}
    places = {}
    for key, quoted in (line.split("=", 1) for line in told):
        name, words = key.rpartition(".")[2], quoted.strip("'").replace("\\n", " ").split()
        if name in ("find-links", "extra-index-url", "index-url"):
            keys[name] = [*keys.get(name, ()), *words] if name != "index-url" else words
            # An index in files has its files beside it.
            index = name != "find-links"
            found = (Path(word.removeprefix("file://")) for word in words)
            found = (place.parent if index else place for place in found)
            places |= {place: place for place in found if place.is_dir()}
    if CERTIFICATES.exists():
        keys["cert"] = ["/certificates.crt"]
        places[CERTIFICATES] = Path("/certificates.crt")
    lines = ["[global]", *(f"{key} = {' '.join(words)}" for key, words in keys.items())]
    (folder / "pip.conf").write_text("\n".join(lines))
    places[folder / "pip.conf"] = Path("/etc/pip.conf")
    return [f"--volume={place}:{inside}:ro" for place, inside in places.items()]


def test_a_sweep_runs_in_the_container(tmp_path: Path) -> None:
    storage = [
        "--root",
        tmp_path / "storage",
        "--runroot",
        tmp_path / "run",
        "--storage-driver=vfs",
    ]

    def buildah(*words: object) -> str:
        command = [str(word) for word in ("buildah", *storage, *words)]
        env = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()

    file = ROOT / "Containerfile"
    (base,) = [line.split()[1] for line in file.read_text().splitlines() if line[:5] == "FROM "]
    assert base == "docker.io/library/debian:12-slim"
    root = tmp_path / "root"
    made = ["debootstrap", "--variant=minbase", "bookworm", str(root)]
    if subprocess.run(made, stdout=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("needs a mirror of Debian")
    empty = buildah("from", "scratch")
    buildah("add", empty, root, "/")
    buildah("commit", empty, base)
    places = settings_of_pip(tmp_path)
    buildah("build", "--pull=never", *places, "--file", file, "--tag", "made", ROOT)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(TINY))
    within = buildah("from", "--pull=never", "localhost/made")
    sweep = f"--volume={tmp_path / 'sweep.yaml'}:/work/sweep.yaml:ro"
    said = buildah("run", sweep, within, "--", "sh", "-c", "id -un && orchestrate sweep sweep.yaml")
    assert said.startswith("ray\n")
    assert "digits/mlp, until val/error < 0.5" in said
