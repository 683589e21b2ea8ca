#!/usr/bin/env python3
"""Fails if files or folders of src/ use one another in a circle, or if a file or function of src/ or sql/ is too long. Prints sizes.

A file that passes names of another one on (`pub use`) does not use it; who takes such a name uses the file that it comes from."""
import graphlib
import pathlib
import re
import sys

SRC = pathlib.Path("src")
USE = re.compile(r"^(pub(?:\(crate\))? )?use ([^;]+);", re.M)


def paths(tree):
    """The paths of a declaration: `a::{b, c::{self, d}}` has a::b, a::c::self and a::c::d."""
    head, brace, rest = tree.partition("{")
    if not brace:
        return [tuple(tree.split(" as ")[0].strip().split("::"))]
    depth, parts = 0, [""]
    for char in rest[: rest.rindex("}")]:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    head = tuple(head.strip().removesuffix("::").split("::"))
    return [head + path for part in parts if part.strip() for path in paths(part.strip())]


def module(file):
    parts = file.relative_to(SRC).with_suffix("").parts
    return parts[:-1] if parts[-1] in ("mod", "lib") else parts


def absolute(path, here):
    match path[0]:
        case "crate":
            return path[1:]
        case "super":
            return here[:-1] + path[1:]
    return here + path


sources = {module(file): file for file in SRC.rglob("*.rs")}
modules = {here: file.read_text() for here, file in sources.items()}
passed_on, uses = {}, {here: set() for here in modules}
for here, text in modules.items():
    for public, tree in USE.findall(text):
        for path in paths(tree):
            path = absolute(path, here)
            if public:
                passed_on[here + path[-1:]] = path
            else:
                uses[here].add(path)


def owner(path):
    """The module of a path. A name of another crate has none, or the module that names it."""
    path = passed_on.get(path, path)
    while path not in modules:
        path = path[:-1]
    return path


files, folders = {}, {}
for here, others in uses.items():
    file = sources[here]
    used = {sources[owner(path)] for path in others} - {file, SRC / "lib.rs"}
    files[file] = used
    folders.setdefault(file.parent, set()).update({other.parent for other in used} - {file.parent})
for graph in files, folders:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as circle:
        sys.exit("a circle: " + " uses ".join(str(part) for part in circle.args[1][::-1]))

# Sizes, in lines with comments and blank ones.
BEGINS = {
    ".rs": re.compile(r'^( *)(?:pub(?:\([^)]*\))? )?(?:const |unsafe |extern "[^"]*" )*fn \w'),
    ".c": re.compile(r"^()\{$"),
    ".h": re.compile(r"^()\{$"),
    ".sql": re.compile(r"^()CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE) "),
}
ENDS = {".rs": "}", ".c": "}", ".h": "}", ".sql": ("$$;", "END;")}
FILE, FUNCTION = 350, 80
total, longest_file, longest_function, too_long = 0, (0, ""), (0, ""), []
for path in sorted(path for folder in ("src", "sql") for path in pathlib.Path(folder).rglob("*")):
    if path.suffix not in BEGINS or path.name.startswith("insta_ids--"):
        continue
    lines = path.read_text().splitlines()
    total += len(lines)
    longest_file = max(longest_file, (len(lines), str(path)))
    if len(lines) > FILE:
        too_long.append(f"{path} has {len(lines)} lines")
    begin = None
    for number, line in enumerate(lines, 1):
        if found := BEGINS[path.suffix].match(line):
            begin, indent = number, found[1]
        if begin and line.startswith(indent) and line[len(indent) :].startswith(ENDS[path.suffix]):
            length = number - begin + 1
            longest_function = max(longest_function, (length, f"{path}:{begin}"))
            if length > FUNCTION:
                too_long.append(f"{path}:{begin} has {length} lines")
            begin = None
print("src/ and sql/: {} lines; the longest file has {}, {}; the longest function has {}, {}".format(total, *longest_file, *longest_function))
if too_long:
    sys.exit("\n".join(too_long))
