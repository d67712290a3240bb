# SPDX-License-Identifier: MIT
"""check_style.py - fail on what the style guide forbids and a few lines of Python can see.

usage: check_style.py [root]      exit status: 0 clean, 1 violations; warnings do not count
"""
import collections
import pathlib
import re
import sys

MAX_LINES, WARN_LINES, MAX_FUNCTION, MAX_NESTING, MAX_COLUMNS = 1000, 600, 100, 4, 120
CODE = {".c", ".h", ".cu", ".cuh", ".m", ".metal", ".def"}
TEXT = CODE | {".py", ".sh", ".md", ".txt", ""}
SKIP = ("build/", "tests/golden/", "tests/fuzz/corpus/", ".git/", ".carry/")
SPDX = "SPDX-License-Identifier: MIT"
# Folders of one machine, and servers that packages come from: neither belongs in a file of the project.
PLACES = re.compile(r"(?<![\w.$}])/(?:home|root|work|mnt|media|Users)/\w"
                    r"|\b(?:pypi\.org|pythonhosted\.org|deb\.debian\.org|archive\.ubuntu\.com|crates\.io|"
                    r"registry\.npmjs\.org|huggingface\.co|ghcr\.io|docker\.io)")
PRINTS = re.compile(r"\b(?:printf|puts|putchar|vprintf|perror)\s*\(|\bfprintf\s*\(\s*std(?:out|err)")
ENDS = re.compile(r"\b(?:exit|_exit|abort|quick_exit)\s*\(")
MAY_END = {"src/base/mem.c"}
MAY_PRINT = {"src/base/log.c"}  # its one sink


def strip(text):
    """Comments and literals become blanks of the same shape, so that line numbers and braces stay right."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return token.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def functions(code):
    """(name, line, lines, deepest nesting) of each function: a "{" at depth 0 behind "name(...)".

    Only blocks nest: the brace of an initializer or a compound literal follows "=", "(", "," or "){".
    """
    depth, start, deepest, name, head, blocks = 0, 0, 0, "", "", []
    for n, line in enumerate(code.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for i, c in enumerate(line):
            if c == "{":
                depth += 1
                blocks.append(re.search(r"(?:\) |else |do |: |;|^)\s*$", line[:i]) is not None)
                if depth == 1:
                    m = re.search(r"(\w+)\s*\([^;{}]*\)[\s\w]*$", head)
                    name, start, deepest = (m.group(1) if m else ""), n, 0
                    head = ""
                deepest = max(deepest, sum(blocks) - 1)
            elif c == "}":
                depth = max(0, depth - 1)
                blocks = blocks[:depth]
                if depth == 0 and name:
                    yield name, start, n - start + 1, deepest
                    name = ""
                head = ""
            elif c == ";" and depth == 0:
                head = ""
            elif depth == 0:
                head += c
        head += " " if depth == 0 else ""


def code_faults(rel, text, warn):
    """Faults of one source file."""
    head = text.splitlines()[:3] + ["", "", ""]
    name = rel.rsplit("/", 1)[-1]
    if SPDX not in head[0]:
        yield 1, f"the first line must hold {SPDX}"
    if f"{name} - " not in head[1]:
        yield 2, f'the second line must be "{name} - purpose"'
    code = strip(text)
    for f, line, lines, deepest in functions(code):
        if lines > MAX_FUNCTION:
            yield line, f"{f}: {lines} lines, limit {MAX_FUNCTION}"
        if deepest > MAX_NESTING and rel.startswith(("src/", "include/")):
            yield line, f"{f}: nested {deepest} deep, limit {MAX_NESTING}"
    n = text.count("\n")
    if n > MAX_LINES:
        yield n, f"{n} lines, limit {MAX_LINES}"
    elif n > WARN_LINES:
        warn(f"{rel}: {n} lines, aim at {WARN_LINES}")
    if not rel.startswith("src/") or rel.startswith("src/cli/"):
        return
    for i, line in enumerate(code.splitlines(), 1):
        if PRINTS.search(line) and rel not in MAY_PRINT:
            yield i, "only cli/ prints"
        if ENDS.search(line) and rel not in MAY_END:
            yield i, "only cli/ and base/mem.c end the process"


def header_faults(text):
    """A header shows its contract: its opening comment is a sentence, and functions are documented."""
    opening = re.match(r"/\*(.*?)\*/", text, re.S)
    if not opening or len(opening.group(1).split()) < 8:
        yield 1, "the opening comment must say what the header is for"


def script_faults(rel, text):
    """Scripts and tools: the licence and the purpose near the top."""
    head = "\n".join(text.splitlines()[:4])
    if SPDX not in head:
        yield 1, f"one of the first lines must hold {SPDX}"
    if f"{rel.rsplit('/', 1)[-1]} - " not in head:
        yield 2, 'no line "name - purpose" near the top'


def map_faults(root):
    """docs/map.md may only name files that exist."""
    path = pathlib.Path(root, "docs/map.md")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for i, line in enumerate(text.splitlines(), 1):
        for name in re.findall(r"\b(?:src|include|tests|tools|docs|bench)/[\w./-]*\w", line):
            if not pathlib.Path(root, name).exists() and not list(pathlib.Path(root).glob(name + "*")):
                yield i, f"{name} does not exist"


def main(root):
    bad, warnings, names = [], [], collections.defaultdict(list)
    for path in sorted(pathlib.Path(root).rglob("*")):
        rel = path.relative_to(root).as_posix()
        if rel.startswith(SKIP) or "__pycache__" in rel or path.suffix not in TEXT or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            if path.suffix:
                bad.append(f"{rel}: not UTF-8")
            continue
        faults = []
        if path.suffix in CODE and rel.startswith(("src/", "include/", "tests/", "bench/")):
            faults += code_faults(rel, text, warnings.append)
            if path.suffix == ".h" and rel.startswith(("src/", "include/")):
                faults += header_faults(text)
            if rel.startswith("src/"):
                names[path.name].append(rel)
        elif path.suffix in {".py", ".sh"}:
            faults += script_faults(rel, text)
        if rel != "tools/check_style.py":
            faults += [(i, f"a place of one machine or a package server: {m.group()}")
                       for i, line in enumerate(text.splitlines(), 1) if (m := PLACES.search(line))]
        bad += [f"{rel}:{i}: {what}" for i, what in faults]
    bad += [f"docs/map.md:{i}: {what}" for i, what in map_faults(root)]
    bad += [f"{' '.join(where)}: the same file name twice" for where in names.values() if len(where) > 1]
    print("".join(f"warning: {w}\n" for w in warnings) + "".join(f"{b}\n" for b in bad), end="")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
