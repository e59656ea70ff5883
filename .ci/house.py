"""Holds the code to the limits of ``house.toml``, so that what was removed stays removed.

Rules:

  lines       lines of Python: of each package, of tests, testkit and loadtests, of the engine's tests
  names       classes of pos_gateway that share a name
  circles     modules of pos_gateway that import each other, in functions and for types, too
  pronouns    percent of the words in a package's docstrings and comments: it, that, which, such ...
  parameters  names under "Args:" that are neither parameters nor fields

A number above its limit fails; the limit of what is not in a table is 0, that of a name 1. A limit
well above its number fails, too: by more than 50 lines and 2 %, by more than 0.2 % of pronouns, by a
class or a module. Lower the limits with ``.ci/house.py --update``, and commit them. Raise a limit by
hand, in a commit of its own that names what was removed elsewhere.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = ".ci/house.toml"
FOLDERS = ("pos_gateway", "tests", "testkit", "loadtests")
ENGINE_TESTS = "tests of the engine"
ENGINE = (
    "admission attempt broker events faults fleet ledger merchants simulation telemetry "
    "transport values worker"
).split()
PRONOUNS = frozenset(
    "it its that what which those these one ones them itself themselves whose none such so others "
    "another other meanwhile".split()
)
#: What each rule counts, and the remedy.
RULES = {
    "lines": ("lines", "remove some, or raise it in a commit that names what was removed"),
    "names": ("classes of this name", "give each a name of its own"),
    "circles": ("modules in its import circle", "move what both sides need below both"),
    "pronouns": ("% pronouns in docstrings and comments", "name the component instead"),
    "parameters": ("documented parameters that do not exist", "name them as the signature does"),
}

_WORD = re.compile(r"[a-z']+")
#: A string, or as the second group a comment: tokenize finds the same in fifteen times the time.
_COMMENT = re.compile(r"""("{3}|'{3}|"|')(?:\\.|[^\\])*?\1|(#[^\n]*)""", re.DOTALL)
#: The section of a docstring, and the parameters' names in it.
_ARGS = re.compile(r"^Args:\n((?: {4}.*\n?|\n)*)", re.MULTILINE)
_ARG = re.compile(r"^ {4}\*{0,2}(\w+):", re.MULTILINE)
#: A line of the limits: key, number, comment.
_LIMIT = re.compile(r'"?([^"#]+?)"? = ([\d.]+)')

_Function = ast.FunctionDef | ast.AsyncFunctionDef
#: By rule and key: the number, and where it is from.
Numbers = dict[str, dict[str, tuple[float, str]]]


def measured(root: Path) -> Numbers:
    """The numbers of the checkout in a folder."""
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    names = [path.relative_to(root).as_posix() for path in paths]
    modules = {_module(name) for name in names}
    lines: Counter[str] = Counter()
    words: dict[str, Counter[bool]] = defaultdict(Counter)
    classes: dict[str, list[str]] = defaultdict(list)
    imports: dict[str, set[str]] = {}
    unknown: dict[str, list[str]] = {}
    for name, path in zip(names, paths, strict=True):
        text = path.read_text()
        folder, *inside = name.split("/")
        of_product = folder == "pos_gateway"
        package = f"{folder}/{inside[0] if inside[1:] else '*.py'}" if of_product else folder
        lines[package] += text.count("\n")
        if folder == "tests" and inside[0] in ENGINE:
            lines[ENGINE_TESTS] += text.count("\n")
        if not of_product and "Args:" not in text:
            continue
        nodes = list(ast.walk(ast.parse(text)))
        unknown[name] = list(_unknown_parameters(nodes))
        if of_product:
            words[package].update(word in PRONOUNS for word in _words(nodes, text))
            imports[_module(name)] = _imports(nodes, modules) & modules
            for node in nodes:
                if isinstance(node, ast.ClassDef):
                    classes[node.name].append(name)
    circles = _circles(imports)
    return {
        "lines": {key: (count, "") for key, count in lines.items()},
        "names": {key: (len(each), ", ".join(each)) for key, each in classes.items() if each[1:]},
        "circles": {
            key: (len(circle), "imports " + ", ".join(sorted(imports[key] & circle)))
            for key, circle in circles.items()
        },
        "pronouns": {
            key: (round(100 * count[True] / max(1, count.total()), 1), "")
            for key, count in words.items()
        },
        "parameters": {key: (len(each), ", ".join(each)) for key, each in unknown.items() if each},
    }


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _words(nodes: Iterable[ast.AST], text: str) -> Iterator[str]:
    """The words of docstrings and comments."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | _Function):
            yield from _WORD.findall((ast.get_docstring(node, clean=False) or "").lower())
    for _, comment in _COMMENT.findall(text):
        yield from _WORD.findall(comment.lower())


def _imports(nodes: Iterable[ast.AST], modules: set[str]) -> set[str]:
    """What is imported anywhere in a module: a package only for names that are no modules."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{each.name}" for each in node.names}
            found |= inside & modules
            if not inside <= modules:
                found.add(node.module)
    return found


def _circles(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Of each module those in its circle, itself among them; none if it is in no circle."""
    reached: dict[str, set[str]] = {}
    for module, direct in imports.items():
        seen, ahead = set(direct), list(direct)
        while ahead:
            new = imports.get(ahead.pop(), set()) - seen
            seen |= new
            ahead += new
        reached[module] = seen
    return {
        module: {each for each in seen if module in reached.get(each, ())}
        for module, seen in reached.items()
    }


def _unknown_parameters(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Documented ones; ruff's DOC102 looks at functions alone, and constructors' are the class's."""
    for node in nodes:
        if isinstance(node, ast.ClassDef | _Function):
            section = _ARGS.search(ast.get_docstring(node) or "")
            for name in _ARG.findall(section[1]) if section else ():
                if name not in _parameters(node):
                    yield f"{node.name}: {name}"


def _parameters(node: ast.ClassDef | _Function) -> set[str]:
    """A function's or constructor's parameters; a class's fields if it has no constructor."""
    if isinstance(node, _Function):
        return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    for each in node.body:
        if isinstance(each, _Function) and each.name in {"__init__", "__new__"}:
            return _parameters(each)
    return {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}


def failures(numbers: Numbers, limits: dict[str, dict[str, float]]) -> Iterator[str]:
    """A sentence for each number above its limit, and for each limit that is to be lowered."""
    for rule, (unit, remedy) in RULES.items():
        of_rule = limits.get(rule, {})
        for key in sorted({*numbers[rule], *of_rule}):
            number, where = numbers[rule].get(key, (0, ""))
            limit = of_rule.get(key, int(rule == "names"))
            slack = {"lines": max(50, number * 0.02), "pronouns": 0.2}.get(rule, 0)
            has = f"{key} has {number} {unit}, and the limit is {limit}"
            if number > limit:
                yield f"{has}: {remedy}{where and f' ({where})'}."
            elif limit and not number:
                yield f"{key} needs no limit of {rule} any more: remove it with --update."
            elif round(limit - number, 1) > slack:
                yield f"{has}: lower it to {number} with --update."


def lowered(text: str, numbers: Numbers) -> str:
    """The text of the limits with each one that is above its number lowered, or removed at 0."""
    lines, rule = [], ""
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            rule = line.strip("[]\n")
        match = _LIMIT.match(line)
        number = numbers[rule].get(match[1], (0, ""))[0] if match else 0
        if match is None or number >= float(match[2]):
            lines.append(line)
        elif number:
            lines.append(f"{line[: match.start(2)]}{number}{line[match.end(2) :]}")
    return "".join(lines)


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Print the failures; 1 if there is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="first lower the limits; raise none")
    update = parser.parse_args(arguments).update
    numbers = measured(root)
    path = root / LIMITS
    if update:
        path.write_text(lowered(path.read_text(), numbers))
    failed = list(failures(numbers, tomllib.loads(path.read_text())))
    for sentence in failed:
        print(sentence)
    return min(len(failed), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
