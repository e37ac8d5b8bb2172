"""Mutations of a Python file: each mutant changes one node of its syntax tree."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
BLOCKS = {"ROWS", "BLOCK", "EDGE", "STEP", "SIZE", "SHORT", "LONG", "TOGETHER"}
SPEED = f"sizes of blocks, which decide about speed and memory ({', '.join(sorted(BLOCKS))})"
IGNORED_FIELDS = ("annotation", "returns", "decorator_list")  # changes there do not affect behaviour


@dataclass(frozen=True)
class Inside:
    """Context of a place in a file.

    Attributes:
        function: first line of the innermost function, decorators included; None outside functions.
        needless: reason why no result depends on the place; None if results may.
    """

    function: int | None = None
    needless: str | None = None


@dataclass(frozen=True)
class Mutant:
    """A file with one place changed."""

    file: Path
    path: str  # relative to the root of the repository
    number: int  # index of the place in the file
    line: int
    change: str
    inside: Inside

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.change}"

    @property
    def text(self) -> str:
        """The text of the changed file."""
        tree = ast.parse(self.file.read_text())
        node, _ = list(places(tree))[self.number]
        return ast.unparse(ast.fix_missing_locations(Swap(node, changed(node)[1]).visit(tree)))


def mutants(root: Path, file: Path) -> list[Mutant]:
    """Every mutant of a file."""
    path = file.relative_to(root).as_posix()
    return [
        Mutant(file, path, number, node.lineno, changed(node)[0], inside)  # type: ignore[index]
        for number, (node, inside) in enumerate(places(ast.parse(file.read_text())))
    ]


def places(tree: ast.AST, inside: Inside = Inside()) -> Iterator[tuple[ast.AST, Inside]]:
    """Nodes that can be changed, in the order of the file, each with its context."""
    if isinstance(tree, ast.FunctionDef):
        inside = replace(inside, function=min(node.lineno for node in (tree, *tree.decorator_list)))
    inside = replace(inside, needless=inside.needless or needless(tree))
    for name, value in ast.iter_fields(tree):
        if name in IGNORED_FIELDS or isinstance(tree, (ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr)):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                if changed(node):
                    yield node, inside
                yield from places(node, inside)


def changed(node: ast.AST) -> tuple[str, ast.AST] | None:
    """Description of the change of a node, and the new node; None if the node has no mutation."""
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if other := OPERATORS.get(type(op)):
            return f"{type(op).__name__} → {other.__name__}", _with(node, op=other())
        case ast.Compare(ops=[op]) if other := OPERATORS.get(type(op)):
            return f"{type(op).__name__} → {other.__name__}", _with(node, ops=[other()])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return "without not", operand
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return "without minus", operand
        case ast.Constant(value=bool(value)):
            return f"{value} → {not value}", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            return f"{value} → {value + 1}", ast.Constant(value + 1)
        case ast.Return(value=value) if value is not None and not _is_none(value):
            return "return None", ast.Return(ast.Constant(None))
    return None


def needless(node: ast.AST) -> str | None:
    """Reason why no result of working code depends on a node; None if results may."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) if name in BLOCKS:
            return SPEED
        case ast.Assign(targets=[ast.Tuple(elts=names)]) if {getattr(name, "id", "") for name in names} <= BLOCKS:
            return SPEED
        case ast.Call(func=ast.Attribute(value=ast.Name(id="warnings"), attr="warn")):
            return "the wording and place of warnings"
        case ast.keyword(arg="strict"):
            return "strict=True of zip, a guard that working code never meets"
    return None


class Swap(ast.NodeTransformer):
    """Replaces one node of a tree by another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, ast.copy_location(new, old)

    def visit(self, node: ast.AST) -> ast.AST:
        """The new node for the old one; all others unchanged."""
        return self.new if node is self.old else self.generic_visit(node)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    twin = copy.copy(node)
    for name, value in fields.items():
        setattr(twin, name, value)
    return twin


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
