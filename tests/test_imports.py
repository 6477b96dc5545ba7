"""The direction of imports, read from the source: pipeline → cluster → training → data_prep; what stays out of each.

Imports inside functions count for the direction; only imports that run when a module is loaded count for start-up time.
"""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["data_prep", "training", "cluster", "pipeline"]  # each may import itself and those before it
FORBIDDEN = {
    "data_prep": {"torch", "ray", "mlflow", "deepspeed", "transformers"},
    "training": {"ray", "mlflow"},
    "cluster": {"mlflow"},
    "pipeline": set[str](),
}
HEAVY = {
    "torch",
    "ray",
    "mlflow",
    "transformers",
    "deepspeed",
    "matplotlib",
    "sklearn",
    "scipy",
    "pandas",
    "webdataset",
}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(tree: ast.AST, package: str) -> Iterator[tuple[str, int]]:
    """Every module named by an import statement under `tree`, with its line; `from a import b` names a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([package, base]).rstrip(".")
            yield base, node.lineno
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def at_load(tree: ast.Module) -> ast.Module:
    """The module without what does not run when it is loaded: function bodies and `if TYPE_CHECKING`."""

    class Strip(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

        def visit_Lambda(self, node: ast.Lambda) -> ast.Constant:
            return ast.Constant(None)

        def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
            if "TYPE_CHECKING" in ast.unparse(node.test):
                return [self.visit(inner) for inner in node.orelse]
            return self.generic_visit(node)

    stripped = Strip().visit(tree)
    assert isinstance(stripped, ast.Module)
    return stripped


@pytest.mark.parametrize("package", LAYERS)
def test_packages_have_modules(package: str) -> None:
    """An empty list would make the tests below pass for nothing."""
    assert len(modules(package)) > 3


@pytest.mark.parametrize("package", LAYERS)
def test_imports_go_down_only(package: str) -> None:
    allowed = LAYERS[: LAYERS.index(package) + 1]
    above = set(LAYERS) - set(allowed)
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules(package)
        for name, line in imported(ast.parse(path.read_text()), package)
        if name.split(".")[0] in above | FORBIDDEN[package]
    ]
    assert not wrong


@pytest.mark.parametrize("package", LAYERS)
def test_our_own_imports_exist(package: str) -> None:
    """A lazy import of a module that is not there would be found only when the line runs."""
    missing = []
    for path in modules(package):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                if name.split(".")[0] in LAYERS and importlib.util.find_spec(name) is None:
                    missing.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {name}")
    assert not missing


def reachable_at_load(start: str) -> Iterator[tuple[str, str]]:
    """(importing module, imported name) for all that loading `start` loads, following our own modules."""
    waiting, seen = [start], {start}
    while waiting:
        module = waiting.pop()
        path = ROOT.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for name, _ in imported(at_load(ast.parse(path.read_text())), module.split(".")[0]):
            yield module, name
            ours = name.split(".")[0] in LAYERS and name not in seen
            target = ROOT.joinpath(*name.split("."))
            if ours and (target.is_dir() or target.with_suffix(".py").exists()):
                seen.add(name)
                waiting.append(name)


@pytest.mark.parametrize("start", ["pipeline.cli", "pipeline.config", "pipeline.experiment", "pipeline.stages"])
def test_nothing_heavy_is_reachable_when_loading(start: str) -> None:
    wrong = [f"{module} imports {name}" for module, name in reachable_at_load(start) if name.split(".")[0] in HEAVY]
    assert not wrong


def test_help_loads_nothing_heavy_and_not_even_the_configuration_tree() -> None:
    """The same by running it, since a third-party package may drag others in."""
    code = (
        "import sys\n"
        "sys.argv = ['electra', '--help']\n"
        "from pipeline import cli\n"
        "try:\n    cli.main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stderr.strip().splitlines()[-1]))
    assert "pipeline" in loaded
    assert not loaded & (HEAVY | {"numpy", "pyarrow", "pydantic", "yaml"})


def test_the_checks_above_see_a_violation() -> None:
    tree = ast.parse("import torch.nn\nfrom ray import train\ndef f():\n    import mlflow\n")
    assert {name for name, _ in imported(tree, "x")} == {"torch.nn", "ray", "ray.train", "mlflow"}
    assert {name for name, _ in imported(at_load(tree), "x")} == {"torch.nn", "ray", "ray.train"}
