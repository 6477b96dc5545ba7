"""The prose every Python installation already has: docstrings of installed packages, and package descriptions.

Deterministic for a given environment: files are taken in a fixed order and read, never imported or executed. One
document is a module's docstring, a top-level function's, or a class with its methods in source order, long classes
cut between methods. The topic of a document is its top-level package ("stdlib" for the standard library). Test folders
and files hardly made of documentation are left out, because parsing is what costs time.
"""

import ast
import importlib.metadata
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import ConfigError
from data_prep.prose import to_prose

STDLIB = "stdlib"
DESCRIPTIONS = "descriptions"
OWN = "electra-pretraining"  # this program's own description, which would talk of the corpus it stands in

# Chosen by measurement: much prose a byte of source, and few near-identical docstrings (which rules out collections of
# models or of generated clients, whose files repeat each other).
DEFAULT_PACKAGES = (
    STDLIB, DESCRIPTIONS, "matplotlib", "mlflow", "networkx", "numpy", "pandas", "ray", "scipy", "sklearn",
    "sqlalchemy", "sympy", "torch",
)  # fmt: skip

MAX_DOCUMENT_CHARS = 4_000  # a class longer than this is cut between methods
MIN_DOCSTRING_CHARS = 60
_MIN_SHARE = 0.15  # of a file that is docstrings: below it the parse costs more than it yields
_MIN_DOC_BYTES = 1_000
_DOCSTRING = re.compile(rb'"""(.*?)"""|' + rb"'''(.*?)'''", re.DOTALL)
_LEFT_OUT = re.compile(
    r"(^|/)(tests?|testing|_?vendor(ed)?|externals?|idlelib|lib2to3|site-packages|dist-packages)/|(^|/)(test_|conftest)|_pb2"
)


@dataclass(frozen=True, slots=True)
class DocFile:
    """One input file. `name` is the same on every machine; `path` is where it lies on this one."""

    package: str
    name: str
    path: Path


def list_files(packages: tuple[str, ...] | None) -> list[DocFile]:
    """The input files of `packages` (None: those of the defaults that are installed), packages interleaved.

    Any prefix of the list holds every package in proportion, so a size cap does not cut a package off.
    ConfigError for a package that is not installed.
    """
    files: list[tuple[float, DocFile]] = []
    for package in packages if packages is not None else DEFAULT_PACKAGES:
        found = list(_package_files(package))
        if not found and packages is not None:
            raise ConfigError(
                f"corpus.sources: package {package!r} is not installed or holds no documentation; install or drop it."
            )
        sizes = [file.path.stat().st_size for file in found]
        total, before = max(1, sum(sizes)), 0
        for file, size in zip(found, sizes, strict=True):
            files.append((before / total, file))
            before += size
    return [file for _, file in sorted(files, key=lambda entry: (entry[0], entry[1].name))]


def _package_files(package: str) -> Iterator[DocFile]:
    """Files of one package worth parsing, sorted by name."""
    if package == DESCRIPTIONS:
        yield from _description_files()
        return
    roots = {kind: Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")}
    folder = roots["stdlib"] if package == STDLIB else roots["purelib"] / package
    if not folder.is_dir():
        folder = roots["platlib"] / package
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.as_posix()):
        inside = path.relative_to(folder).as_posix()
        if not _LEFT_OUT.search(inside) and _is_rich(path.read_bytes()):
            yield DocFile(package, f"{package}/{inside}", path)


def _description_files() -> Iterator[DocFile]:
    """METADATA of every installed distribution that has a name, our own left out, sorted by name.

    Of several by one name the first on the path counts, as it does for the interpreter.
    """
    found: dict[str, DocFile] = {}
    for distribution in importlib.metadata.distributions(path=_search_path()):
        path = getattr(distribution, "_path", None)
        if path is None or not (path / "METADATA").is_file():
            continue
        if not distribution.metadata or "Name" not in distribution.metadata:  # half removed
            continue
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        if name != OWN:
            found.setdefault(name, DocFile(DESCRIPTIONS, f"{DESCRIPTIONS}/{name}", Path(path) / "METADATA"))
    yield from (found[name] for name in sorted(found))


def _search_path() -> list[str]:
    """Without folders inside installed packages: importing one (ray) may add its own copies of others to the path, and
    what is found must not depend on what was imported."""
    sites = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    return [path for path in sys.path if not any(Path(site) in Path(path).parents for site in sites)]


def _is_rich(source: bytes) -> bool:
    length = sum(len(a) + len(b) for a, b in _DOCSTRING.findall(source) if len(a) + len(b) > 200)
    return length >= _MIN_DOC_BYTES and length >= _MIN_SHARE * len(source)


def documents(package: str, name: str, content: bytes) -> Iterator[tuple[str, str, str]]:
    """(id, topic, prose) of one file's documents; a file that cannot be decoded or parsed raises ValueError."""
    if package == DESCRIPTIONS:
        yield from _description(name, content)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        try:
            tree = ast.parse(content)
        except (SyntaxError, RecursionError) as error:
            raise ValueError(f"not parsable as Python: {error}") from None
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for qualname, prose in _module_documents(tree):
        yield f"{module}:{qualname}", package, prose


def _description(name: str, content: bytes) -> Iterator[tuple[str, str, str]]:
    """The long description: what follows the headers of a METADATA file."""
    text = content.decode("utf-8")
    body = text.partition("\n\n")[2]
    prose = to_prose(body)
    if prose:
        topic = name.removeprefix(f"{DESCRIPTIONS}/")
        yield name, topic, prose


def _module_documents(tree: ast.Module) -> Iterator[tuple[str, str]]:
    docstring = ast.get_docstring(tree, clean=False)
    if docstring and (prose := to_prose(docstring)):
        yield "__doc__", prose
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _class_documents(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if prose := _docstring_prose(node):
                yield node.name, prose
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _added_document(node.value)


def _class_documents(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """A class with its methods, cut between methods where it grows beyond MAX_DOCUMENT_CHARS."""
    parts: list[str] = []
    first, size = node.name, 0
    for qualname, prose in _class_parts(node, node.name):
        if parts and size + len(prose) > MAX_DOCUMENT_CHARS:
            yield first, "\n\n".join(parts)
            parts, size = [], 0
        if not parts:
            first = qualname
        parts.append(prose)
        size += len(prose)
    if parts:
        yield first, "\n\n".join(parts)


def _class_parts(node: ast.ClassDef, qualname: str) -> Iterator[tuple[str, str]]:
    if prose := _docstring_prose(node):
        yield qualname, prose
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and (prose := _docstring_prose(child)):
            yield f"{qualname}.{child.name}", prose
        elif isinstance(child, ast.ClassDef):
            yield from _class_parts(child, f"{qualname}.{child.name}")


def _added_document(call: ast.Call) -> Iterator[tuple[str, str]]:
    """Docstrings of compiled functions, attached at import: `add_newdoc(…)`, `add_docstr(…)`, `_add_docstr(…)`."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if not re.search(r"add_?(new)?doc", function):
        return
    strings = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    longest = max(strings, key=len, default="")
    if len(longest) >= MIN_DOCSTRING_CHARS and (prose := to_prose(longest)):
        target = call.args[0] if call.args else None
        named = [text for text in strings if text.isidentifier()]
        name = ".".join(named) if named else ast.unparse(target) if isinstance(target, ast.Name | ast.Attribute) else ""
        yield f"{name}@{call.lineno}", prose


def _docstring_prose(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    docstring = ast.get_docstring(node, clean=False)
    return to_prose(docstring) if docstring and len(docstring) >= MIN_DOCSTRING_CHARS else ""
