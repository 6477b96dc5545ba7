"""Docstrings become documents: deterministic, named, grouped by class, packages in proportion."""

import sys
import tomllib
from pathlib import Path

import pytest

from data_prep import installed_docs
from data_prep.errors import ConfigError

SOURCE = '''
"""This module explains what the rest of the file is about, in one sentence."""
import nothing_that_exists

def function(x):
    """This function does something with its argument and returns nothing at all."""

def undocumented(x):
    """Short."""

class Thing:
    """A thing has a beginning, a middle and an end, like every other thing."""

    def first(self):
        """The first method is explained here in a sentence that is long enough."""

    class Inner:
        def second(self):
            """The second method lives in an inner class and is explained as well."""

add_newdoc("package", "compiled",
    """
    The docstring of a compiled function is attached by a call like this one.
    """)
'''


def read(source: str, name: str = "pkg/sub/mod.py") -> dict[str, str]:
    found = list(installed_docs.documents("pkg", name, source.encode()))
    assert {topic for _, topic, _ in found} <= {"pkg"}
    assert len({identifier for identifier, _, _ in found}) == len(found)
    return {identifier: prose for identifier, _, prose in found}


def test_one_document_a_module_a_function_a_class() -> None:
    documents = read(SOURCE)
    assert documents == {
        "pkg.sub.mod:__doc__": "This module explains what the rest of the file is about, in one sentence.",
        "pkg.sub.mod:function": "This function does something with its argument and returns nothing at all.",
        "pkg.sub.mod:Thing": (
            "A thing has a beginning, a middle and an end, like every other thing.\n\n"
            "The first method is explained here in a sentence that is long enough.\n\n"
            "The second method lives in an inner class and is explained as well."
        ),
        "pkg.sub.mod:package.compiled@21": "The docstring of a compiled function is attached by a call like this one.",
    }


def test_a_package_is_named_by_its_folder() -> None:
    assert list(read('"""The package says what it is for in this docstring, at length."""', "pkg/__init__.py")) == [
        "pkg:__doc__"
    ]


def test_long_classes_are_cut_between_methods() -> None:
    sentence = "This sentence is repeated in order to make the docstring of the method long. "
    methods = "".join(f'    def m{i}(self):\n        """Method {i} of many. {sentence * 12}"""\n' for i in range(9))
    documents = read(f"class Long:\n{methods}")
    assert list(documents) == ["pkg.sub.mod:Long.m0", "pkg.sub.mod:Long.m4", "pkg.sub.mod:Long.m8"]
    assert max(map(len, documents.values())) <= installed_docs.MAX_DOCUMENT_CHARS
    assert [text.count("of many") for text in documents.values()] == [4, 4, 1]


@pytest.mark.parametrize("content", [b"def broken(:\n", b"x = '\xff'\n", b"\0"])
def test_what_is_not_python_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="not parsable"):
        list(installed_docs.documents("pkg", "pkg/a.py", content))


def test_descriptions_follow_the_headers() -> None:
    body = b"# Some thing\n\nA description that is written for people to read.\n"
    metadata = b"Metadata-Version: 2.1\nName: Some-Thing\n\n" + body
    found = list(installed_docs.documents("descriptions", "descriptions/some-thing", metadata))
    assert found == [("descriptions/some-thing", "some-thing", "A description that is written for people to read.")]


def test_descriptions_are_of_others_with_a_name_and_the_first_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, folder, name in [
        ("first", "thing-1.dist-info", "Name: Some_Thing\n"),
        ("second", "thing-2.dist-info", "Name: some.thing\n"),
        ("first", "own-1.dist-info", "Name: Electra_Pretraining\n"),
        ("first", "nameless-1.dist-info", ""),
    ]:
        (tmp_path / place / folder).mkdir(parents=True)
        (tmp_path / place / folder / "METADATA").write_text(f"Metadata-Version: 2.1\n{name}Version: 1\n\nText.\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    found = [(file.name, file.path) for file in installed_docs.list_files((installed_docs.DESCRIPTIONS,))]
    assert found == [("descriptions/some-thing", tmp_path / "first/thing-1.dist-info/METADATA")]


def test_our_own_distribution_is_known_by_its_name() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert project["name"] == installed_docs.OWN


def test_the_standard_library_gives_real_prose_and_no_tests() -> None:
    files = installed_docs.list_files(("stdlib",))
    names = [file.name for file in files]
    assert names == [file.name for file in installed_docs.list_files(("stdlib",))]
    assert "stdlib/textwrap.py" in names
    assert not [name for name in names if "/test/" in name or "site-packages" in name]
    textwrap = next(file for file in files if file.name == "stdlib/textwrap.py")
    documents = {
        identifier: prose
        for identifier, _, prose in installed_docs.documents("stdlib", textwrap.name, textwrap.path.read_bytes())
    }
    assert documents["stdlib.textwrap:dedent"].startswith(
        "Remove any common leading whitespace from every line in text"
    )
    assert ">>>" not in "".join(documents.values())


def test_any_prefix_holds_packages_in_proportion() -> None:
    files = installed_docs.list_files(("numpy", "networkx"))
    sizes = {
        package: sum(f.path.stat().st_size for f in files if f.package == package) for package in ("numpy", "networkx")
    }
    for share in (0.25, 0.5, 0.75):
        total, seen = 0.0, {"numpy": 0, "networkx": 0}
        for file in files:
            if total > share * sum(sizes.values()):
                break
            seen[file.package] += file.path.stat().st_size
            total += file.path.stat().st_size
        for package, size in sizes.items():
            assert abs(seen[package] / size - share) < 0.12  # one large file is at most a few percent of a package


def test_a_package_that_is_not_installed_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no_such_package"):
        installed_docs.list_files(("no_such_package",))


def test_the_default_list_takes_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_docs, "DEFAULT_PACKAGES", ("no_such_package", "networkx"))
    assert {file.package for file in installed_docs.list_files(None)} == {"networkx"}


def test_descriptions_are_those_of_the_environment_whatever_was_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Importing ray puts a folder inside of it on the path, with copies of packages that nobody installed."""
    site = tmp_path / "python3" / "site-packages"
    for folder, name in ((site, "installed"), (site / "ray" / "thirdparty_files", "carried")):
        (folder / f"{name}-1.dist-info").mkdir(parents=True)
        (folder / f"{name}-1.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    path = [str(site / "ray" / "thirdparty_files"), str(site.parent), str(site)]
    monkeypatch.setattr(sys, "path", path)
    assert [file.name for file in installed_docs.list_files(("descriptions",))] == ["descriptions/installed"]
