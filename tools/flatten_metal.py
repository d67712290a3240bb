# SPDX-License-Identifier: MIT
"""flatten_metal.py - joins Metal sources and the project's headers into one text that needs no files.

usage: flatten_metal.py OUT.metal FILE...        one self-contained source
       flatten_metal.py --c OUT.c FILE...        the same text as an array in C (iso_metal_source)

#include "..." is replaced by the file (looked up under src/, each file once); of #include <...> only the
metal_... headers stay: the C library's have no meaning there. Branches that __METAL_VERSION__ or
__CUDACC__ decide are decided here, so that no header is lost in a branch that is never compiled. An
include inside a condition that is not known here is an error. The first lines switch contraction off
for everything behind them. Run in the project's root.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path("src")
PREAMBLE = ["// Kernels of isobit, made by tools/flatten_metal.py: nothing may be contracted or re-ordered.",
            "#pragma METAL fp math_mode(safe)", "#pragma METAL fp contract(off)"]
KNOWN = {"__METAL_VERSION__": True, "__CUDACC__": False}
QUOTED = re.compile(r'\s*#\s*include\s+"([^"]+)"')
ANGLED = re.compile(r"\s*#\s*include\s+<([^>]+)>")
CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b\s*(.*?)\s*(?:/[/*].*)?$")


class FlattenError(Exception):
    """What is wrong, with file and line."""


def decide(word, rest):
    """True or False for a condition on one known macro, None for any other."""
    if word in ("ifdef", "ifndef"):
        m = re.fullmatch(r"(\w+)", rest)
    else:
        m = re.fullmatch(r"(!?)\s*defined\s*\(?\s*(\w+)\s*\)?", rest)
    if not m:
        return None
    value = KNOWN.get(m.group(m.lastindex))
    if value is None:
        return None
    negated = word == "ifndef" or (word in ("if", "elif") and m.group(1) == "!")
    return value != negated


class Flattener:
    """Collects output lines; seen holds the files that are already in."""

    def __init__(self):
        self.seen, self.system, self.out = set(), set(), list(PREAMBLE)

    def add(self, path):
        """Appends a file and what it includes, once."""
        if path in self.seen:
            return
        self.seen.add(path)
        lines = path.read_text(encoding="utf-8").splitlines()
        guard = self.guard_of(lines)
        stack = []  # [state of a condition: True taken, False not taken, None unknown; was any branch taken]
        self.out.append(f"// ---- {path.as_posix()}")
        for n, line in enumerate(lines, 1):
            if n not in guard:
                self.line(path, n, line, stack)
        if stack:
            raise FlattenError(f"{path}: a condition is not closed")

    @staticmethod
    def guard_of(lines):
        """Numbers of the lines of an include guard, or none."""
        code = [(n, s.strip()) for n, s in enumerate(lines, 1) if s.lstrip().startswith("#")]
        if len(code) < 3:
            return set()
        first, second, last = code[0], code[1], code[-1]
        m = re.fullmatch(r"#\s*ifndef\s+(\w+)", first[1])
        if m and re.fullmatch(rf"#\s*define\s+{m.group(1)}", second[1]) and last[1].startswith("#endif"):
            return {first[0], second[0], last[0]}
        return set()

    def line(self, path, n, line, stack):
        """One line: a condition, an include, or text."""
        m = CONDITION.match(line)
        if m:
            if self.condition(path, n, m.group(1), m.group(2), stack):
                self.out.append(line)
            return
        if any(state is False for state, _ in stack):
            return
        m = QUOTED.match(line)
        if m:
            if any(state is None for state, _ in stack):
                raise FlattenError(f'{path}:{n}: "{m.group(1)}" is included under a condition that is not known here')
            self.include(path, n, m.group(1))
            return
        m = ANGLED.match(line)
        if m:
            if m.group(1).startswith("metal_") and m.group(1) not in self.system:
                self.system.add(m.group(1))
                self.out.append(line.strip())
            return
        if line.strip() == "#pragma once":
            return
        self.out.append(line.rstrip())

    @staticmethod
    def condition(path, n, word, rest, stack):
        """Follows the stack of conditions; says whether the line itself stays in the text."""
        outer_off = any(state is False for state, _ in (stack if word in ("if", "ifdef", "ifndef") else stack[:-1]))
        if word in ("if", "ifdef", "ifndef"):
            state = False if outer_off else decide(word, rest)
            stack.append([state, state])
            return state is None
        if not stack:
            raise FlattenError(f"{path}:{n}: #{word} without #if")
        top = stack[-1]
        if word == "endif":
            stack.pop()
            return top[1] is None and not outer_off
        if top[1] is None:
            return not outer_off
        if top[1]:  # a branch before was taken
            top[0] = False
        elif outer_off:
            top[0] = False
        else:
            state = True if word == "else" else decide("elif", rest)
            if state is None:
                raise FlattenError(f"{path}:{n}: #elif of an unknown condition behind a known one")
            top[0] = top[1] = state
        return False

    def include(self, path, n, name):
        """A header named in quotes."""
        for found in (ROOT / name, path.parent / name):
            if found.is_file():
                self.add(found)
                return
        raise FlattenError(f'{path}:{n}: "{name}" is not under {ROOT}')

    def text(self):
        """The whole, with runs of blank lines shortened."""
        return re.sub(r"\n{3,}", "\n\n", "\n".join(self.out)) + "\n"


def as_c(text):
    """A C file that holds the text as bytes: no limit on the length of a string, no escapes."""
    data = text.encode()
    rows = [",".join(map(str, data[i:i + 32])) for i in range(0, len(data), 32)]
    return ("/* Made by tools/flatten_metal.py: the kernels of the Metal device as text. */\n"
            '#include "device/metal_source.h"\n\n'
            "const char iso_metal_source[] = {\n" + ",\n".join(rows) + "};\n"
            "const size_t iso_metal_source_len = sizeof(iso_metal_source);\n")


def main(args):
    c = args[:1] == ["--c"]
    args = args[1:] if c else args
    if len(args) < 2:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    f = Flattener()
    try:
        for name in args[1:]:
            f.add(pathlib.Path(name))
    except (OSError, FlattenError) as e:
        print(f"flatten_metal.py: {e}", file=sys.stderr)
        return 1
    out = pathlib.Path(args[0])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(as_c(f.text()) if c else f.text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
