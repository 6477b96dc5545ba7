"""What of a working directory is sent, held against the package that Ray itself makes of it."""

from pathlib import Path
from zipfile import ZipFile

import pytest
from ray._private.runtime_env.packaging import create_package

from cluster import working_dir
from data_prep.errors import ConfigError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name, size in {
        "configs/a.yaml": 10,
        "pipeline/größe.py": 300,
        ".git/objects/pack": 5000,
        ".env": 40,
        "deep/.netrc": 40,
        "runs/big/checkpoint": 5000,
        "corpus/train/000.tar": 5000,
        "model.safetensors": 5000,
        "scratch/notes.txt": 5000,
        "ignored.log": 5000,
        "deep/.gitignore": 0,
        "deep/kept.txt": 7,
        "deep/dropped.bin": 5000,
        "own/data.csv": 5000,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * size)
    (folder / ".gitignore").write_text("*.log\n")
    (folder / ".rayignore").write_text("scratch\n")
    (folder / "deep" / ".gitignore").write_text("*.bin\n")
    (folder / "empty").mkdir()
    return folder


def test_what_is_sent_is_what_rays_package_holds(project: Path, tmp_path: Path) -> None:
    """By name and byte: the size of the zip is known before it is made."""
    found = working_dir.measure(project, ["own"])
    assert set(found.files) == {
        ".gitignore", ".rayignore", "configs/a.yaml", "pipeline/größe.py", "deep/.gitignore", "deep/kept.txt", "empty/",
    }  # fmt: skip
    package = tmp_path / "package.zip"
    create_package(str(project), package, include_gitignore=True, excludes=list(found.excludes))
    with ZipFile(package) as zipped:
        assert set(zipped.namelist()) == set(found.files)
    assert found.package_bytes == package.stat().st_size
    assert found.holds(project / "configs" / "a.yaml")
    assert not found.holds(project / "ignored.log")
    assert not found.holds(tmp_path / "other.yaml")


def test_150_mb_are_refused_with_the_biggest_paths(project: Path) -> None:
    """Sparse files: nothing is read."""
    sizes = {"raw/a.txt": 90, "raw/b.txt": 40, "raw/c.txt": 20, **{f"raw/{n}.bin": 0 for n in range(10)}}
    (project / "raw").mkdir()
    for name, mib in sizes.items():
        with open(project / name, "wb") as file:
            file.truncate(mib * 1024**2 + 1)
    with pytest.raises(ConfigError) as refused:
        working_dir.measure(project, [])
    sentence = str(refused.value)
    assert "the working directory comes to 150.0 MiB, and Ray takes 100.0 MiB" in sentence
    assert "cluster.submit.excludes" in sentence and "\n" not in sentence
    assert sentence.split("the biggest: ")[1].startswith("raw/a.txt (90.0 MiB), raw/b.txt (40.0 MiB), raw/c.txt (20.0")
    assert sentence.count(" MiB)") == 10
    assert "raw/a.txt" not in working_dir.measure(project, ["raw/a.txt"]).files  # the way out that was named


def test_the_limit_is_that_of_rays_dashboard() -> None:
    from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE

    assert working_dir.LIMIT_BYTES == DASHBOARD_CLIENT_MAX_SIZE


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder; --working-dir names"):
        working_dir.measure(tmp_path / "none", [])
