"""The rules of docs/design.md on the layout: which layer and service may import which, and how large a part may be."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence, Set
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LAYERS = ("models", "supervisor", "handlers")
FILES = [ROOT / "run.py", *(file for layer in LAYERS for file in sorted((ROOT / layer).rglob("*.py")))]
NAMES = [str(file.relative_to(ROOT)) for file in FILES]
SERVICES = {"supervision": "supervision", "processes": "supervision", "charts": "charts", "tracker": "tracker"}
"""Folder within a layer -> the service. Services do not import each other; everything else may be imported by all."""
MAX_MODULE_LINES, MAX_CLASS_LINES, MAX_FUNCTION_LINES, MAX_LOOSE_MODULES = 500, 450, 40, 10
MAX_MODULES_IN_A_FOLDER = {"models/tracker/reports": 30}  # one module a format; elsewhere 15


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text())


@functools.cache
def nodes(name: str) -> Sequence[ast.AST]:
    return list(ast.walk(tree(name)))


@functools.cache
def imported(name: str) -> Set[str]:
    found: set[str] = set()
    for node in nodes(name):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def service_of(module: str) -> str | None:
    return next((SERVICES[part] for part in module.split(".")[1:2] if part in SERVICES), None)


def test_a_service_imports_no_other_service() -> None:
    found = []
    for name in NAMES:
        own = service_of(name.removesuffix(".py").replace("/", "."))
        found += [
            (name, module)
            for module in imported(name)
            if own and module.split(".")[0] in LAYERS and service_of(module) not in (None, own)
        ]
    assert found == []


def test_a_handler_uses_the_service_of_its_folder_only() -> None:
    found = [
        (name, used)
        for name in NAMES
        if re.match("handlers/(supervision|charts|tracker)/", name)
        for used in re.findall(
            r"\b(?:self|page|handler|services)\.(supervision|charts|tracker)\b", ast.unparse(tree(name))
        )
        if used != name.split("/")[1]
    ]
    assert found == []


def test_modules_classes_and_functions_have_limited_length() -> None:
    limits = {
        ast.ClassDef: MAX_CLASS_LINES,
        ast.FunctionDef: MAX_FUNCTION_LINES,
        ast.AsyncFunctionDef: MAX_FUNCTION_LINES,
    }
    parts = [
        (name, node.name)
        for name in NAMES
        for node in nodes(name)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= limits[type(node)]
    ]
    modules = [name for name in NAMES if len((ROOT / name).read_text().splitlines()) > MAX_MODULE_LINES]
    assert (parts, modules) == ([], [])


def test_no_statement_has_numbered_placeholders() -> None:
    """Python 3.12.0 to 3.12.3 warn of `?1` with a sequence; warnings are errors in the tests."""
    found = [
        (name, node.value)
        for name in NAMES
        for node in nodes(name)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.search(r"\b(SELECT|INSERT|UPDATE|DELETE)\b[^;]*\?[1-9]", node.value)
    ]
    assert found == []


def test_few_modules_are_outside_a_subfolder() -> None:
    loose = Counter(
        file.parent.name for layer in LAYERS for file in (ROOT / layer).glob("*.py") if file.stem != "__init__"
    )
    assert {layer: count for layer, count in loose.items() if count > MAX_LOOSE_MODULES} == {}


def test_no_folder_has_too_many_modules() -> None:
    counts = Counter(str(Path(name).parent) for name in NAMES if not name.endswith("__init__.py"))
    too_many = {folder: count for folder, count in counts.items() if count > MAX_MODULES_IN_A_FOLDER.get(folder, 15)}
    assert too_many == {}


def test_no_layer_imports_a_layer_above() -> None:
    above = {"models": {"supervisor", "handlers", "run"}, "supervisor": {"handlers", "run"}, "handlers": {"run"}}
    assert imports_of(lambda name: above.get(name.split("/")[0], set())) == []


def test_models_do_not_import_loop_http_or_process_modules() -> None:
    modules = {"asyncio", "tornado", "http", "subprocess", "socket"}
    assert imports_of(lambda name: modules if name.startswith("models/") else set()) == []


def imports_of(refused: Callable[[str], Set[str]]) -> Sequence[tuple[str, str]]:
    """The modules of the tree that import a top-level name that is refused to them, with that name."""
    return [
        (name, top) for name in NAMES for top in {module.split(".")[0] for module in imported(name)} & refused(name)
    ]


def test_there_are_no_circular_imports() -> None:
    graph = {name: {f"{module.replace('.', '/')}.py" for module in imported(name)} & set(NAMES) for name in NAMES}
    done: set[str] = set()
    while ready := {name for name, needs in graph.items() if name not in done and needs <= done}:
        done |= ready
    assert set(NAMES) - done == set()


STARTS_PROCESSES = {
    *(f"supervisor/children/{module}.py" for module in ("child", "launcher", "launcher_process")),
    "supervisor/cli/changed_lines.py",  # it runs git in CI
}


def test_only_these_modules_start_processes() -> None:
    starts = r"\bos\.(fork|posix_spawn|system|popen|exec)|create_subprocess"
    found = {name for name in NAMES if "subprocess" in imported(name) or re.search(starts, (ROOT / name).read_text())}
    assert found - STARTS_PROCESSES == set()


def test_only_one_statement_changes_the_status_of_a_process() -> None:
    """A record gets a new status in `_become`, and nowhere else."""
    found = [
        (name, node.lineno)
        for name in NAMES
        if "/processes/" in name or "/supervision/" in name  # elsewhere a status is that of a release or a run
        for node in nodes(name)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "_replace"
        and any(keyword.arg == "status" for keyword in node.keywords)
    ]
    assert len(found) == 1, found


def test_every_module_has_a_docstring() -> None:
    assert [name for name in NAMES if not ast.get_docstring(tree(name)) and (ROOT / name).read_text()] == []


def test_modules_have_no_to_do_comments() -> None:
    marks = r"\b(TO" + "DO|FIX" + "ME|X{3}|HA" + r"CK)\b"
    assert [name for name in NAMES if re.search(marks, (ROOT / name).read_text())] == []


def test_each_security_concern_has_its_module() -> None:
    """Credentials, origin, proxies and permissions have modules and functions with these names."""
    for concern, step in (
        ("credentials", "identify_caller"),
        ("origin", "check_origin"),
        ("permissions", "admit"),
        ("proxy", "client_address"),
    ):
        assert step in definitions(f"handlers/http/{concern}.py")
    security = [name for name in NAMES if name.startswith("handlers/http/")]
    assert not {"shown", "look", "known"} & set().union(*map(definitions, security))


def test_the_functions_in_the_tables_of_the_design_document_exist() -> None:
    """Each row names a function or method and the file that defines it."""
    steps = re.findall(
        r"^\| `(\w+(?:\.\w+)?)` \| `([\w/]+\.py)` \|", (ROOT / "docs/design.md").read_text(), re.MULTILINE
    )
    assert len(steps) > 10
    assert [(step, name) for step, name in steps if step not in definitions(name)] == []


def test_the_methods_named_in_the_design_document_exist() -> None:
    methods = set(re.findall(r"`([A-Z]\w+\.[a-z_]+)`", (ROOT / "docs/design.md").read_text()))
    defined = set().union(*map(definitions, NAMES))
    assert len(methods) > 10
    assert methods - defined == set()


def test_the_files_named_in_the_documents_exist() -> None:
    texts = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    named = {
        (text.name, found)
        for text in texts
        for found in re.findall(
            r"`((?:models|supervisor|handlers|benchmarks|tests|\.ci)/[\w/.]+\.py)`", text.read_text()
        )
    }
    assert len(named) > 20
    assert [pair for pair in sorted(named) if not (ROOT / pair[1]).exists()] == []


def definitions(name: str) -> set[str]:
    """The functions of a module, and its methods as `Class.method`."""
    body = tree(name).body
    methods = [(node, inner) for node in body if isinstance(node, ast.ClassDef) for inner in node.body]
    return {getattr(node, "name", "") for node in body} | {
        f"{node.name}.{inner.name}"
        for node, inner in methods
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_names_of_classes_are_unique() -> None:
    """A name says its role: `HelmSettings` are read by `Helm`, and one search finds the class."""
    defined = [node.name for name in NAMES for node in tree(name).body if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(defined).items() if count > 1] == []


def test_names_of_test_files_are_unique() -> None:
    """The folders are not packages, so pytest cannot import two modules of one name."""
    names = Counter(file.name for file in (ROOT / "tests").rglob("*.py"))
    assert [name for name, count in names.items() if count > 1] == []
