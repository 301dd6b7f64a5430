#!/usr/bin/env python3
"""Usage: scripts/module_graph.py [--edges FROM TO]

Finds cycles between the top-level modules of each crate, by the paths in their code; unit tests do not count. --edges
lists the uses of module TO in module FROM. The last line is `module-graph: N cycles`; the exit status is 1 if there is
one.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A string, a raw string, a character, or a comment.
OTHER = re.compile(
    r'//[^\n]*|/\*.*?\*/|b?r(?P<hashes>#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|' r"b?'(?:\\.[^']*|[^'\\])'", re.DOTALL
)
TESTS = re.compile(r"#\[cfg\((?:test|all\(test[^\]]*)\)\]\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*\{")
USE = re.compile(r"\buse\s+([^;]+);")
INLINE = re.compile(r"(?<![\w:])(crate|super|self)((?:\s*::\s*\w+)+)")


def code_of(path):
    """The code of a file without comments, texts and unit tests."""
    code = OTHER.sub(lambda found: '""' if found.group().endswith('"') else " ", path.read_text())
    while found := TESTS.search(code):
        depth, end = 1, found.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        code = code[: found.start()] + code[end:]
    return code


def paths_of(tree):
    """The paths of a use tree, each a list of names."""
    found = re.fullmatch(r"\s*((?:\w+\s*::\s*)*)\{(.*)\}\s*", tree, re.DOTALL)
    if not found:
        return [[name.split(" as ")[0].strip() for name in tree.split("::") if name.strip()]]
    front = [name.strip() for name in found.group(1).split("::") if name.strip()]
    parts, depth = [""], 0
    for letter in found.group(2):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [front + path for part in parts if part.strip() for path in paths_of(part)]


def uses(source):
    """Pairs of file and path from the crate's root."""
    modules = {}
    for path in source.rglob("*.rs"):
        place = path.relative_to(source).with_suffix("").parts
        if path.name == "tests.rs" or "tests" in place or place in {("lib",), ("main",), ("prelude",)}:
            continue
        modules[path] = place[:-1] if path.name == "mod.rs" else place
    exported = {}
    root = source / "lib.rs"
    if root.exists():
        for found in USE.finditer(code_of(root)):
            exported.update({path[-1]: path for path in paths_of(found.group(1))})
    for path, module in modules.items():
        code = code_of(path)
        found = [name for use in USE.finditer(code) for name in paths_of(use.group(1))]
        rest = USE.sub(";", code)
        found += [[use.group(1), *re.split(r"\s*::\s*", use.group(2))[1:]] for use in INLINE.finditer(rest)]
        for name in found:
            base = list(module)
            if name and name[0] in {"super", "self"}:
                while name and name[0] in {"super", "self"}:
                    base = base[:-1] if name[0] == "super" else base
                    name = name[1:]
                name = base + name
            elif name and name[0] == "crate":
                name = name[1:]
            else:
                continue
            if name and name[0] in exported:
                name = exported[name[0]] + name[1:]
            if name:
                yield path, name


def graph_of(crate, source):
    """The edges between the top-level modules of a crate, with the uses that make each."""
    tops = {path.stem for path in source.iterdir() if path.is_dir() or path.suffix == ".rs"}
    edges = {}
    for path, name in uses(source):
        top = path.relative_to(source).with_suffix("").parts[0]
        if name[0] not in tops or name[0] == top:
            continue
        edges.setdefault((top, name[0]), set()).add(f"{path.relative_to(ROOT)}: {'::'.join(name)}")
    return edges


def cycles_of(edges):
    """Sets of modules that depend on each other."""
    below = {}
    for start, end in edges:
        below.setdefault(start, set()).add(end)

    def reached(start):
        seen, waiting = set(), [start]
        while waiting:
            for top in below.get(waiting.pop(), ()):
                if top not in seen:
                    seen.add(top)
                    waiting.append(top)
        return seen

    reach = {top: reached(top) for top in below}
    tied = {top for top in below if top in reach[top]}
    return {frozenset(other for other in tied if other in reach[top] and top in reach[other]) for top in tied}


def main(arguments):
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return 0
    if arguments and (arguments[0] != "--edges" or len(arguments) != 3):
        print("module_graph.py: see scripts/module_graph.py --help", file=sys.stderr)
        return 2
    count = 0
    for source in sorted(ROOT.glob("crates/*/src")):
        crate = source.parent.name
        edges = graph_of(crate, source)
        if arguments:
            print("\n".join(sorted(edges.get((arguments[1], arguments[2]), ()))), end="")
            continue
        for cycle in sorted(cycles_of(edges), key=sorted):
            count += 1
            print(f"{crate}: {', '.join(sorted(cycle))}")
            for (start, end), places in sorted(edges.items()):
                if start in cycle and end in cycle:
                    print(f"    {start} -> {end}: {min(places)}")
    if arguments:
        return 0
    print(f"module-graph: {count} cycles")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
