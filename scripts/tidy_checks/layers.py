"""Allowed includes: the ```layers block of docs/architecture.md is authoritative, includes form no cycle, and only seams are virtual."""

import re

from .tree import Finding, Tree

PAGE = "docs/architecture.md"
# Top-level folders: they may include any room, and no room may include them.
ABOVE_ALL = ("tests", "bench")


def parse_rules(lines: list[tuple[int, str]]) -> dict[str, set[str]]:
    """Room -> rooms it may include, from lines `rooms : rooms` or `rooms : all of the above but rooms`."""
    rules: dict[str, set[str]] = {}
    for number, line in lines:
        left, colon, right = line.partition(":")
        if not colon:
            raise ValueError(f"{PAGE}:{number}: expected `rooms : rooms`, found `{line}`")
        words = right.replace(",", " ").split()
        if words[:4] == ["all", "of", "the", "above"]:
            but = words[5:] if words[4:5] == ["but"] else []
            allowed = {room for room in rules if not any(room == name or room.startswith(name + "/") for name in but)}
        else:
            allowed = set(words)
        unknown = allowed - set(rules) - set(left.split())
        if unknown:
            raise ValueError(f"{PAGE}:{number}: {', '.join(sorted(unknown))} must stand in a line above")
        for room in left.split():
            rules[room] = set(allowed)
    return rules


def room_of(path: str, rooms) -> str | None:
    """The longest known room that contains the file."""
    parts = path.split("/")[:-1]
    while parts:
        name = "/".join(parts)
        if name in rooms or name in ABOVE_ALL:
            return name
        parts.pop()
    return None


def check_layers(tree: Tree) -> list[Finding]:
    lines = tree.fenced_block(PAGE, "layers")
    if not lines:
        return [Finding(PAGE, 1, "layers", "the ```layers block is missing")]
    try:
        rules = parse_rules(lines)
    except ValueError as error:
        return [Finding(PAGE, lines[0][0], "layers", str(error))]
    findings = []
    for source in tree.sources.values():
        room = room_of(source.path, rules)
        if room is None:
            findings.append(Finding(source.path, 1, "layers", f"this folder is not in the layers block of {PAGE}"))
            continue
        for line, name, quoted in source.includes():
            if not quoted:
                continue
            target = room_of(name, rules)
            if target is None or name not in tree.sources:
                findings.append(Finding(source.path, line, "layers", f'"{name}" is no file of a room; includes start at the root'))
            elif not edge_allowed(room, target, rules):
                allowed = " ".join(sorted(rules.get(room, ()))) or "nothing"
                findings.append(Finding(source.path, line, "layers", f"{room} may not include {target} (it may include: {allowed})"))
    return findings


def edge_allowed(room: str, target: str, rules: dict[str, set[str]]) -> bool:
    if room == target or target in rules.get(room, ()):
        return True
    return any(room == top or room.startswith(top + "/") for top in ABOVE_ALL)


def check_cycles(tree: Tree) -> list[Finding]:
    """One finding per include that closes a cycle."""
    graph = {
        path: [(line, name) for line, name, quoted in source.includes() if quoted and name in tree.sources]
        for path, source in tree.sources.items()
    }
    findings: list[Finding] = []
    state: dict[str, int] = {}  # 1: on the current path, 2: done

    def walk(path: str, trail: list[str]) -> None:
        state[path] = 1
        for line, name in graph[path]:
            if state.get(name) == 1:
                cycle = " -> ".join(trail[trail.index(name):] + [name])
                findings.append(Finding(path, line, "cycles", f"include cycle: {cycle}"))
            elif name not in state:
                walk(name, trail + [name])
        state[path] = 2

    for path in sorted(graph):
        if path not in state:
            walk(path, [path])
    return findings


def check_knots(tree: Tree) -> list[Finding]:
    """A header and its source count as one: their includes must not lead back to them. (Tarjan's strongly connected components.)"""
    graph: dict[str, set[str]] = {}
    for path, source in tree.sources.items():
        if source.is_test:
            continue
        unit = re.sub(r"\.(h|cpp|cu)$", "", path)
        used = {re.sub(r"\.(h|cpp|cu)$", "", name) for _, name, quoted in source.includes() if quoted and name in tree.sources}
        graph.setdefault(unit, set()).update(used - {unit})
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    open_units: list[str] = []
    knots: list[list[str]] = []

    def walk(unit: str) -> None:
        order[unit] = low[unit] = len(order)
        open_units.append(unit)
        for used in sorted(graph.get(unit, ())):
            if used not in order:
                walk(used)
                low[unit] = min(low[unit], low[used])
            elif used in open_units:
                low[unit] = min(low[unit], order[used])
        if low[unit] == order[unit]:
            at = open_units.index(unit)
            knots.append(sorted(open_units[at:]))
            del open_units[at:]

    for unit in sorted(graph):
        if unit not in order:
            walk(unit)
    findings = []
    for knot in knots:
        if len(knot) > 1:
            text = f"{len(knot)} units lead back to one another: {', '.join(knot)}"
            findings.append(Finding(knot[0] + ".h", 1, "knots", text))
    return findings


def check_seams(tree: Tree) -> list[Finding]:
    """Pure virtual functions occur only in the files of the ```seams block."""
    seams = {line.partition(":")[2].strip() for _, line in tree.fenced_block(PAGE, "seams")}
    findings = []
    for source in tree.sources.values():
        if source.is_test or source.path in seams:
            continue
        for match in re.finditer(r"\bvirtual\b[^;{}]*=\s*0\s*;", source.code):
            findings.append(Finding(source.path, source.line_of(match.start()), "seams", f"a virtual seam that {PAGE} does not list: call it directly"))
    return findings
