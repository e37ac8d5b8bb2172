"""Draw the two pictures of `docs/architecture.md`: ``python docs/draw_architecture.py``.

In `folders.svg`, a box is a folder, and an arrow is an import between folders. In `call.svg`, a box is a file that a
query passes from the hidden state to the kernel. Boxes, levels and arrows are read from the import statements; a test
compares the committed files with a new drawing. Nothing is imported, so this runs without torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap

from import_graph import Arrow, Module, file_arrows, folder_arrows, levels, modules, reduced, summary

FOLDER = Path(__file__).parent / "architecture"


@dataclass(frozen=True)
class Box:
    """A box of a picture: its place and size, its title, and the lines under the title."""

    x: float
    y: float
    width: float
    height: float
    title: str
    lines: tuple[str, ...] = ()
    kind: str = "box"

    @property
    def middle(self) -> tuple[float, float]:
        """Centre of the box."""
        return self.x + self.width / 2, self.y + self.height / 2

    def draw(self) -> str:
        """The box as SVG."""
        x, _ = self.middle
        rows = [f'<text class="title" x="{x:g}" y="{self.y + 21:g}">{escape(self.title)}</text>']
        rows += [
            f'<text class="line" x="{x:g}" y="{self.y + 38 + 14 * number:g}">{escape(line)}</text>'
            for number, line in enumerate(self.lines)
        ]
        shape = f'<rect class="{self.kind}" x="{self.x:g}" y="{self.y:g}" width="{self.width:g}" '
        return "\n".join([f'{shape}height="{self.height:g}" rx="6"/>', *rows])


STYLE = """
.ground { fill: #ffffff; }
.box { fill: #eef3fb; stroke: #3b6ab0; }
.small { fill: #f7f7f4; stroke: #8a8a80; }
.title { font: 600 12.5px system-ui, sans-serif; fill: #1b1f24; text-anchor: middle; }
.line { font: 11px system-ui, sans-serif; fill: #3d444d; text-anchor: middle; }
.head { font: 600 12px system-ui, sans-serif; fill: #3d444d; text-anchor: middle; }
.arrow { fill: none; stroke: #27476f; stroke-width: 1.6; marker-end: url(#tip); }
.faint { fill: none; stroke: #9db4d3; stroke-width: 1; marker-end: url(#faint-tip); }
"""
TIP = (
    '<marker id="{name}" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z" fill="{color}"/></marker>'
)


def svg(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """An SVG with a white background, which is legible on a dark page too."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">'
    tips = TIP.format(name="tip", color="#27476f") + TIP.format(name="faint-tip", color="#9db4d3")
    ground = f'<rect class="ground" width="{width:g}" height="{height:g}" rx="8"/>'
    start = [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", f"<defs>{tips}</defs>", ground]
    return "\n".join([*start, *parts, "</svg>", ""])


def path(kind: str, arrow: Arrow, points: str) -> str:
    """An arrow as SVG, with its import as an attribute for the test and for searches in the file."""
    return f'<path class="{kind}" data-import="{arrow[0]} {arrow[1]}" d="{points}"/>'


WIDTH, BOX_WIDTH, BOX_HEIGHT, LEVEL_HEIGHT, LINE_LENGTH = 980, 236, 76, 106, 38


def folders() -> str:
    """Draw the folders by their levels in the imports, the lowest at the bottom."""
    arrows = folder_arrows()
    level = levels(arrows)
    top = max(level.values())
    boxes: dict[str, Box] = {}
    for height in range(top + 1):
        row = sorted(name for name, one in level.items() if one == height)
        for position, name in enumerate(row):
            x = WIDTH / 2 + (position - (len(row) - 1) / 2) * (BOX_WIDTH + 24) - BOX_WIDTH / 2
            lines = tuple(wrap(summary(name), LINE_LENGTH, max_lines=3, placeholder=" …"))
            boxes[name] = Box(x, 20 + (top - height) * LEVEL_HEIGHT, BOX_WIDTH, BOX_HEIGHT, label(name), lines)
    direct = reduced(arrows)
    implied = [bow("faint", pair, boxes) for pair in sorted(arrows - direct)]
    straight = [
        drop(pair, boxes) if level[pair[0]] - level[pair[1]] == 1 else bow("arrow", pair, boxes)
        for pair in sorted(direct)
    ]
    drawn = [box.draw() for _, box in sorted(boxes.items())]
    title = "Folders of the package in their levels; an arrow is an import"
    return svg(WIDTH, 20 + (top + 1) * LEVEL_HEIGHT, title, [*implied, *straight, *drawn])


def label(name: str) -> str:
    """Name of a folder or file in the repository."""
    if not modules()[name].is_package:
        return f"{name}.py"
    return f"{name}/"


def drop(arrow: Arrow, boxes: Mapping[str, Box]) -> str:
    """An arrow from the bottom of one box to the top of another."""
    (ax, _), (bx, _) = boxes[arrow[0]].middle, boxes[arrow[1]].middle
    foot, head = boxes[arrow[0]].y + boxes[arrow[0]].height, boxes[arrow[1]].y
    bend = min(40.0, (head - foot) / 2)
    return path("arrow", arrow, f"M{ax:g} {foot:g} C{ax:g} {foot + bend:g} {bx:g} {head - bend:g} {bx:g} {head:g}")


def bow(kind: str, arrow: Arrow, boxes: Mapping[str, Box]) -> str:
    """An arrow around the boxes in between; the more levels it spans, the wider its curve."""
    a, b = boxes[arrow[0]], boxes[arrow[1]]
    middle = (a.middle[0] + b.middle[0]) / 2
    span = round((b.y - a.y) / LEVEL_HEIGHT)
    right = middle > WIDTH / 2 or (middle == WIDTH / 2 and span % 2 == 0)
    edge = (lambda box: box.x + box.width) if right else (lambda box: box.x)
    out = (max if right else min)(edge(a), edge(b)) + (1 if right else -1) * (20 + 30 * span)
    start, end = a.middle[1] + 6, b.middle[1] - 6
    return path(kind, arrow, f"M{edge(a):g} {start:g} C{out:g} {start:g} {out:g} {end:g} {edge(b):g} {end:g}")


COLUMN, CHIP_WIDTH, CHIP_HEIGHT, CHIP_STEP = 248, 198, 32, 42


def call_columns() -> list[tuple[str, list[str]]]:
    """The files that a query passes, by stage; the stage of a file follows from its folder and imports."""
    arrows = file_arrows()
    rooms = ("patches.", "forward.", "cache.")
    below = [name for name, module in modules().items() if name.startswith(rooms) and not module.is_package]
    adapters = [name for name in below if registers(modules()[name])]
    layer = [name for name in below if has_method(modules()[name], "attend")]
    helpers = {b for a, b in arrows if a in layer and b in below} - {*adapters, *layer}
    engine = {name for name, module in modules().items() if name.startswith("attention.") and not module.is_package}
    routes = {name for name in engine if name.startswith("attention.routes.")}
    asked = {b for a, b in arrows if a in {*layer, *helpers, "attention.dispatch"} and b in engine - routes}
    choice = {"attention.dispatch", *(name for name in asked if not name.startswith("attention.kernels."))}
    return [
        ("a forward pass", ["forward.base_forward", "forward.stages", *sorted(adapters)]),
        ("a layer", sorted(layer)),
        ("what a layer asks", ["schemes.base", *sorted(helpers)]),
        ("choice of a route", sorted(choice, key=lambda name: (name != "attention.dispatch", name))),
        ("routes", sorted(routes)),
        ("kernels", sorted(engine - routes - choice, key=lambda name: (name.count("."), name))),
    ]


def has_method(module: Module, name: str) -> bool:
    """Whether a class of the module defines a method of that name."""
    classes = (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))
    return any(isinstance(one, ast.FunctionDef) and one.name == name for node in classes for one in node.body)


def registers(module: Module) -> bool:
    """Whether a module registers an adapter."""
    classes = (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))
    calls = (one.func for node in classes for one in node.decorator_list if isinstance(one, ast.Call))
    return any(isinstance(call, ast.Name) and call.id == "register_adapter" for call in calls)


def call() -> str:
    """Draw the way of a query, from left to right."""
    columns = call_columns()
    rows = max(len(names) for _, names in columns)
    boxes: dict[str, Box] = {}
    heads = []
    for number, (title, names) in enumerate(columns):
        x = 20 + number * COLUMN
        heads.append(f'<text class="head" x="{x + CHIP_WIDTH / 2:g}" y="28">{escape(title)}</text>')
        for position, name in enumerate(names):
            y = 46 + (position + (rows - len(names)) / 2) * CHIP_STEP
            kind = "box" if number in (0, 1, 3) else "small"
            boxes[name] = Box(x, y, CHIP_WIDTH, CHIP_HEIGHT, short(name), (), kind)
    shown = sorted((a, b) for a, b in file_arrows() if a in boxes and b in boxes)
    forward = [across(arrow, boxes) for arrow in shown if boxes[arrow[0]].x < boxes[arrow[1]].x]
    entered = {b for a, b in shown if boxes[a].x < boxes[b].x}
    within = [side_arrow((a, b), boxes) for a, b in shown if boxes[a].x == boxes[b].x and b not in entered]
    title = "The way of a query from the hidden state to the kernel; an arrow is an import"
    width, height = 20 + len(columns) * COLUMN - (COLUMN - CHIP_WIDTH) + 20, 46 + rows * CHIP_STEP + 8
    drawn = [box.draw() for _, box in sorted(boxes.items())]
    return svg(width, height, title, [*sorted(forward, reverse=True), *within, *heads, *drawn])


def short(name: str) -> str:
    """Name of a module without the folders that are clear from its column."""
    words = name.split(".")
    return ".".join(words[2:]) if words[1] in ("routes", "kernels") else "/".join(words[-2:])


def across(arrow: Arrow, boxes: Mapping[str, Box]) -> str:
    """An arrow from the right edge of one box to the left edge of another; faint where it skips a column."""
    a, b = boxes[arrow[0]], boxes[arrow[1]]
    start, end = (a.x + a.width, a.middle[1]), (b.x, b.middle[1])
    bend = (end[0] - start[0]) / 2
    kind = "arrow" if end[0] - start[0] < COLUMN else "faint"
    curve = f"C{start[0] + bend:g} {start[1]:g} {end[0] - bend:g} {end[1]:g} {end[0]:g} {end[1]:g}"
    return path(kind, arrow, f"M{start[0]:g} {start[1]:g} {curve}")


def side_arrow(arrow: Arrow, boxes: Mapping[str, Box]) -> str:
    """An arrow between two boxes of one column."""
    a, b = boxes[arrow[0]], boxes[arrow[1]]
    start, end, out = a.middle[1], b.middle[1] + (4 if a.y > b.y else -4), a.x - 8 - abs(b.y - a.y) / 8
    return path("faint", arrow, f"M{a.x:g} {start:g} C{out:g} {start:g} {out:g} {end:g} {b.x:g} {end:g}")


PICTURES = {"folders.svg": folders, "call.svg": call}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, draw in PICTURES.items():
        (FOLDER / file).write_text(draw(), encoding="utf-8")
