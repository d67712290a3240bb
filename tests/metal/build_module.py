# SPDX-License-Identifier: MIT
"""build_module.py - makes Metal source into a shared library of kernels for the emulator.

usage: build_module.py [--check] SOURCE.metal OUT.so

Part of an EMULATION of Metal on the CPU, for tests. The text must be flattened (tools/flatten_metal.py).
Steps: refuse what Metal's compiler refuses and clang does not; clang's preprocessor; take kernels' signatures,
function constants and threadgroup variables out of Metal's syntax; add one thunk per kernel; compile with the
headers of shim/. --check: each access to memory calls the emulator. clang because its vectors are Metal's and
its ThreadSanitizer pass exists without the library; any version from 14 on ($ISO_METAL_CXX, default clang++).
"""
import os
import pathlib
import platform
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CXX = os.environ.get("ISO_METAL_CXX", "clang++")
DEFINES = ["-D__METAL_VERSION__=310", "-D__METAL__=1", "-D__METAL_MACOS__=1", "-D__HAVE_SIMDGROUP_MATRIX__=1",
           "-D__HAVE_SIMDGROUP_REDUCTION__=1"]
# Metal fuses a * b + c unless told not to: so does this build, that a missing pragma is seen.
# No AVX in checked modules: the pass knows accesses of up to 16 bytes.
FLAGS = ["-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-ffp-contract=on", "-fsigned-char",
         "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-fno-threadsafe-statics", "-fno-math-errno",
         "-nostdinc", "-Wall", "-Wextra", "-Wno-unused", "-Wno-unused-parameter", "-Wno-duplicate-decl-specifier",
         "-Wno-unknown-pragmas", "-Wno-sign-compare", "-Wno-unknown-attributes", "-Wno-user-defined-literals",
         "-Wno-ignored-qualifiers", "-Wno-missing-field-initializers", "-Wno-nan-infinity-disabled",
         "-Wno-unknown-warning-option", "-Wdouble-promotion", "-Werror=double-promotion", "-Werror=vla",
         "-Werror=return-type", "-Xclang", "-fallow-half-arguments-and-returns"]
BUILTINS = set("""thread_position_in_threadgroup thread_index_in_threadgroup thread_position_in_grid
threadgroup_position_in_grid threads_per_threadgroup dispatch_threads_per_threadgroup threadgroups_per_grid
threads_per_grid thread_index_in_simdgroup simdgroup_index_in_threadgroup threads_per_simdgroup
thread_execution_width simdgroups_per_threadgroup dispatch_simdgroups_per_threadgroup thread_index_in_quadgroup
quadgroup_index_in_threadgroup quadgroup_index_in_simdgroup""".split())
# Those of a kernel are all scalars or all vectors of one length; those of a row are of one type.
POSITIONS = [("thread_position_in_grid", "threads_per_grid"),
             ("thread_position_in_threadgroup", "threads_per_threadgroup", "dispatch_threads_per_threadgroup"),
             ("threadgroup_position_in_grid", "threadgroups_per_grid")]
ATTRIBUTE = re.compile(r"\[\[[^\[\]]*\]\]")
REFUSED = [(re.compile(p), why) for p, why in [
    (r"\bdouble\b", "double: Metal has none"),
    (r"\blong\s+long\b", "long long: Metal has none"),
    (r"\b(?:new|delete|throw|try|catch|dynamic_cast|typeid|goto|virtual|thread_local|noexcept|register|asm)\b",
     "Metal has no such word"),
    (r"\[[&=\w\s,]*\]\s*\([^()]*\)\s*(?:->[^{;]*)?\{", "a lambda: Metal has none before 3.2"),
    (r"\b(?:struct|class)\s+\w+\s*:\s*(?:public\s+|private\s+)?\w+", "a derived class: Metal has none"),
    (r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?(?![\w.])", "a floating literal without f"),
    (r"(?<![\w.])0[xX][0-9a-fA-F.]+[pP][+-]?\d+(?![\w.])", "a floating literal without f"),
]]


class SourceError(Exception):
    """The message names the line."""


def line_of(text, at):
    """The line of the flattened source, which is the line here: steps keep line ends."""
    return text.count("\n", 0, at) + 1


def fail(text, at, why):
    """An error that looks like the compiler's."""
    raise SourceError(f"{line_of(text, at)}: error: {why}")


def close(text, at):
    """Index of the bracket that closes the one at text[at]."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    stack = []
    for i in range(at, len(text)):
        c = text[i]
        if c in pairs:
            stack.append(pairs[c])
        elif stack and c == stack[-1]:
            stack.pop()
            if not stack:
                return i
        elif c in ")}]":
            break
    fail(text, at, f"'{text[at]}' is not closed")
    return at


def split(text, mark=","):
    """Parts of a list, brackets respected (<...> too)."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
        elif c == mark and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [p.strip() for p in parts if p.strip()]


def blank(text):
    """The text's line ends only."""
    return "\n" * text.count("\n")


def preprocess(source):
    """Macros replaced, one line per line of the source."""
    included = re.search(r'^[ \t]*#[ \t]*include[ \t]*"([^"]*)"', source, re.M)
    if included:
        fail(source, included.start(), f'#include "{included.group(1)}": the text is not flattened')
    if not re.search(r"#\s*include\s*<metal_stdlib>", source):
        raise SourceError("1: error: no #include <metal_stdlib>")
    text = re.sub(r"^[ \t]*#[ \t]*include[ \t]*<metal_\w+>.*$", "", source, flags=re.M)
    out = subprocess.run([CXX, "-E", "-x", "c++", "-std=c++17", "-nostdinc", *DEFINES, "-"], input=text, text=True,
                         capture_output=True, check=False)
    if out.returncode:
        raise SourceError(out.stderr.replace("<stdin>:", "", 1))
    lines = [""]
    for line in out.stdout.split("\n"):  # lines[i] is line i + 1 of the source
        m = re.match(r'# (\d+) "([^"]*)"', line)
        if m:
            want = int(m.group(1)) if m.group(2) == "<stdin>" else 1
            lines += [""] * (want - len(lines))
            del lines[max(want, 1):]
            continue
        lines[-1] += line
        lines.append("")
    return "\n".join(lines)


def refuse(text):
    """Errors that Metal's compiler gives and clang for the CPU does not."""
    code = re.sub(r'"(?:\\.|[^"\\\n])*"|^\s*#.*$', lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.M)
    for pattern, why in REFUSED:
        m = pattern.search(code)
        if m:
            fail(code, m.start(), f"{m.group().strip()}: {why}")


def take_constants(text):
    """Function constants become variables; constants made of them become functions."""
    constants = []

    def one(m):
        kind, name, index = m.groups()
        constants.append((kind, name, index))
        return f"static {kind} {name}; static int emu_defined_{name};" + blank(m.group())
    text = re.sub(r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\s*\(\s*([^()]+?)\s*\)\s*\]\]\s*;", one, text)
    names = {n for _, n, _ in constants}
    text = re.sub(r"\bis_function_constant_defined\s*\(\s*(\w+)\s*\)", r"(emu_defined_\1 != 0)", text)
    grown = True
    while grown and names:
        grown = False
        for m in re.finditer(r"\bconstant\s+(?:constexpr\s+)?(\w+)\s+(\w+)\s*=([^;{}]*);", text):
            kind, name, value = m.groups()
            if not names & set(re.findall(r"(?:emu_defined_)?(\w+)", value)):
                continue
            text = (text[:m.start()] + f"static inline {kind} emu_value_{name}() {{ return {value}; }}"
                    + text[m.end():m.end()] + f"\n#define {name} emu_value_{name}()\n#line {line_of(text, m.end())}"
                    + "\n" + text[m.end():])
            names.add(name)
            grown = True
            break
    return text, constants


def storage(body, offset, text, ids):
    """Declarations of threadgroup variables in a kernel's body become references to the group's memory."""
    def one(m):
        names = split(m.group(1))
        plain = re.sub(r"\[[^\]]*\]", "", m.group(1))
        if re.search(r"[*&(=]", plain):
            return m.group()
        first = re.fullmatch(r"(.*?)(\w+)((?:\s*\[.*\])*)", names[0], re.S)
        if not first or not first.group(1).strip():
            fail(text, offset + m.start(), "cannot read this declaration")
        out = ""
        for i, n in enumerate(names):
            n = n if i == 0 else first.group(1) + n
            name = re.fullmatch(r".*?(\w+)(?:\s*\[.*\])*", n, re.S).group(1)
            ids.append(name)
            k = len(ids)
            flat = " ".join(n.split())
            out += (f"struct emu_group_{k} {{ {flat}; }}; "
                    f'auto &{name} = emu_group_storage<emu_group_{k}>({k}, "{name}")->{name}; ')
        return out + blank(m.group())
    return re.sub(r"(?<![\w,(<*&])threadgroup\b(?=\s)([^;(){}]*(?:\[[^\]]*\][^;(){}]*)*);", one, body)


class Kernel:
    """One entry point: name for the host, expression to call, parameters as text."""

    def __init__(self, host, call, params, threads):
        self.host, self.call, self.params, self.threads = host, call, params, threads

    def thunk(self, number, text, at):
        """A function without arguments that calls the kernel with the current lane's."""
        args = [self.argument(p, text, at) for p in self.params]
        self.positions(args, text, at)
        return f"static void emu_run_{number}() {{ {self.call}({', '.join(args)}); }}\n"

    def positions(self, args, text, at):
        """Metal's rules for the types of positions and indices."""
        kinds = dict(re.findall(r"emu_builtin_(\w+)<(\w+)>", " ".join(args)))
        grid = {k for row in POSITIONS for k in row if k in kinds}
        if len({kinds[k][-1] if kinds[k][-1] in "23" else "1" for k in grid}) > 1:
            fail(text, at, f"{self.host}: expecting input declarations with either all scalar types or all vector "
                           f"types with the same number of elements: {', '.join(sorted(grid))}")
        for row in POSITIONS:
            if len({kinds[k] for k in row if k in kinds}) > 1:
                fail(text, at, f"{self.host}: {' and '.join(k for k in row if k in kinds)} are of one type")
        for k in set(kinds) - grid:
            if kinds[k][-1] in "23":
                fail(text, at, f"{self.host}: {k} is a scalar")

    @staticmethod
    def argument(param, text, at):
        """The value of one parameter."""
        attributes = " ".join(ATTRIBUTE.findall(param))
        plain = ATTRIBUTE.sub("", param).strip()
        m = re.search(r"\b(buffer|threadgroup)\s*\(\s*(\w+)\s*\)", attributes)
        if m and m.group(1) == "buffer":
            if not re.search(r"\b(?:device|constant)\b", plain):
                fail(text, at, f"{plain}: a buffer is device or constant")
            return f"emu_arg_{'object' if '&' in plain else 'pointer'}({m.group(2)})"
        if m:
            if not re.search(r"\bthreadgroup\b", plain):
                fail(text, at, f"{plain}: not a threadgroup pointer")
            return f"emu_arg_threadgroup({m.group(2)})"
        for word in re.findall(r"\w+", attributes):
            if word in BUILTINS:
                kind = re.sub(r"\bconst\b", "", re.sub(r"\w+\s*$", "", plain)).strip()
                if not re.fullmatch(r"u(?:int|short)[23]?", kind):
                    fail(text, at, f"{plain}: {word} is ushort, uint or a vector of them")
                return f"emu_builtin_{word}<{kind}>()"
        fail(text, at, f"{param}: an argument without an attribute that the emulator knows")
        return ""


def take_kernels(text):
    """(text with storage moved, kernels)."""
    kernels, templates, ids, at = [], {}, [], 0
    head = re.compile(r"((?:\[\[[^\[\]]*\]\]\s*)*)\b(kernel)\s+((?:\[\[[^\[\]]*\]\]\s*)*)void\s+(\w+)\s*(<[^;{}()]*>)?\s*\(")
    while True:
        m = head.search(text, at)
        if not m:
            break
        end = close(text, m.end() - 1)
        params = split(text[m.end():end])
        attributes = m.group(1) + m.group(3)
        threads = re.search(r"max_total_threads_per_threadgroup\s*\(([^()]*)\)", attributes)
        threads = threads.group(1) if threads else "1024"
        name, arguments = m.group(4), m.group(5)
        before = text[:m.start()].rstrip()
        rest = re.match(r"\s*(?:\[\[[^\[\]]*\]\]\s*)*", text[end + 1:])
        opening = end + 1 + rest.end()
        host = re.search(r'host_name\s*\(\s*"([^"]+)"', before[-200:].rsplit(";", 1)[-1] + attributes)
        if text[opening] == "{":
            stop = close(text, opening)
            body = storage(text[opening:stop + 1], opening, text, ids)
            text = text[:opening] + body + text[stop + 1:]
            if re.search(r"\btemplate\s*<[^;{}]*>$", before):
                templates[name] = (params, threads)
            else:
                kernels.append((Kernel(host.group(1) if host else name, name, params, threads), m.start()))
            at = opening + len(body)
            continue
        if arguments and re.search(r"\btemplate\b[^;{}]*$", before):
            kernels.append((Kernel(host.group(1) if host else name, name + arguments, params, threads), m.start()))
        at = opening
    # template [[host_name("x")]] kernel decltype(f<T>) f<T>;
    for m in re.finditer(r'\btemplate\s*\[\[\s*host_name\s*\(\s*"([^"]+)"\s*\)\s*\]\]\s*kernel\s+'
                         r"(?:decltype\s*\(.*?\)|\w+)\s+((\w+)\s*<[^;()]*>)\s*;", text, re.S):
        if m.group(3) not in templates:
            fail(text, m.start(), f"{m.group(3)}: no kernel template of this name")
        params, threads = templates[m.group(3)]
        kernels.append((Kernel(m.group(1), m.group(2), params, threads), m.start()))
    if not kernels:
        raise SourceError("1: error: no kernel")
    left = re.sub(r"\[[^\[\]]*\]", "", ATTRIBUTE.sub("", text))
    stray = re.search(r"(?<![\w,(<*&])threadgroup\s[^;(){}*&=]*;", left)
    if stray:
        raise SourceError(f"{line_of(left, stray.start())}: error: {stray.group()}: a threadgroup variable outside "
                          "of a kernel's body")
    return text, kernels


SPACE = re.compile(r"\b(?:device|constant|threadgroup|thread|auto)\b")
# Pointer variables and members; casts to pointers; program-scope values.
POINTER = re.compile(r"[;{}]\s*((?:(?:const|static|constexpr|struct)\s+)*\w+(?:<[^<>;]*>)?(?:\s+const)?\s*[*&]+\s*"
                     r"(?:const\s+)?\w+\s*[=;])|\(\s*((?:const\s+)?(?:struct\s+)?\w+(?:\s+const)?\s*\*+)\s*\)"
                     r"|_cast\s*<([^<>;]*[*&])\s*>")
PROGRAM_SCOPE = re.compile(r"^(?:static\s+|const\s+|constexpr\s+)+[\w<>, ]+?(?:\[[^\]]*\]\s*)*=[^;]*;", re.M)


def spaces(text):
    """What has to name its address space does: Metal has no default. clang sees to it that they fit together."""
    for m in POINTER.finditer(text):
        if not SPACE.search(m.group()) and not re.match(r"[;{}]\s*(?:return|case|else|typedef|using)\b", m.group()):
            at = m.end() - len(m.group().lstrip(";{} \n\t"))
            fail(text, at, f"{' '.join(m.group().lstrip(';{}').split())}: a pointer or reference without an address space")
    for m in PROGRAM_SCOPE.finditer(text):
        if not re.search(r"\bconstant\b", m.group()):
            fail(text, m.start(), f"{m.group()[:60]}: a value of the program's scope is constant")
    for m in re.finditer(r"\b(\w+)\s*\(", text):
        if m.group(1) in {"if", "for", "while", "switch", "return", "sizeof", "alignof", "decltype"}:
            continue
        end = close(text, m.end() - 1)
        if not re.match(r"\s*(?:const\s*)?(?:\[\[[^\[\]]*\]\]\s*)*\{", text[end + 1:end + 200]):
            continue
        for p in split(text[m.end():end]):
            plain = ATTRIBUTE.sub("", p)
            if re.search(r"[*&]", plain) and re.match(r"[\w:<>,\s]+[*&]+\s*(?:const\s*)?(?:\w+|\(\s*&)", plain):
                if not re.search(r"\b(?:device|constant|threadgroup|thread)\b", plain):
                    fail(text, m.start(), f"{plain}: a pointer or reference without an address space")


def translate(source, name):
    """C++ of a module."""
    text = preprocess(source)
    refuse(text)
    text = re.sub(r"^[ \t]*#[ \t]*pragma[ \t]+METAL[ \t]+fp[ \t]+contract\s*\(\s*(\w+)\s*\)",
                  r"#pragma clang fp contract(\1)", text, flags=re.M)
    spaces(text)
    text, constants = take_constants(text)
    text, kernels = take_kernels(text)
    out = ['#include "metal_stdlib"\n', f'#line 1 "{name}"\n', ATTRIBUTE.sub("", text), '\n#line 1 "thunks"\n']
    out += [k.thunk(i, text, at) for i, (k, at) in enumerate(kernels)]
    out.append("static const struct emu_kernel emu_kernels[] = {\n")
    out += [f'    {{"{k.host}", emu_run_{i}, (unsigned)({k.threads})}},\n' for i, (k, _) in enumerate(kernels)]
    out.append("};\nstatic const struct emu_constant emu_constants[] = {\n")
    for _, n, i in constants:
        optional = int(f"(emu_defined_{n} != 0)" in text)
        out.append(f'    {{"{n}", (unsigned)({i}), sizeof({n}), &{n}, &emu_defined_{n}, {optional}}},\n')
    out.append("    {nullptr, 0, 0, nullptr, nullptr, 0},\n};\n")
    out.append('extern "C" __attribute__((visibility("default"))) const struct emu_module emu_module = {\n'
               f"    EMU_ABI_VERSION, EMU_CHECK, emu_kernels, {len(kernels)}, emu_constants, {len(constants)}, "
               "&emu_rt, &emu_order,\n};\n")
    return "".join(out)


def check_spaces(cpp, flags):
    """Compiles as C++14, with address spaces as types; copies of whole structures, which Metal allows, pass."""
    flags = ["-isystem" + f[2:] if f.startswith("-I") else f for f in flags if not f.startswith(("-W", "-std"))]
    flags += ["-std=c++14", "-Wno-everything", "-Werror=c++17-extensions", "-Werror=c++20-extensions"]
    done = subprocess.run([CXX, *flags, "-ferror-limit=0", "-DEMU_SPACES=1", "-fsyntax-only", str(cpp)],
                          text=True, capture_output=True, check=False)
    blocks = re.split(r"^(?=\S+:\d+:\d+: error: )", done.stderr, flags=re.M)
    bad = [b for b in blocks if re.match(r"\S+: error: ", b)
           and "hexadecimal floating literals" not in b  # Metal's own headers have them
           and not re.search(r"(?:copy constructor|copy assignment operator)\) not viable: .*address space", b)]
    if bad:
        sys.stderr.write("C++14 with address spaces:\n" + "".join(bad))
        raise SourceError("")


def compile_module(cpp, out, check):
    """Compiles and links; raises with the compiler's text."""
    include = [f"-I{HERE / 'shim'}", f"-I{HERE}"]
    flags = FLAGS + [f"-DEMU_CHECK={int(check)}", *DEFINES, *include]
    check_spaces(cpp, flags)
    if platform.machine() == "x86_64":
        flags += ["-mf16c", "-mfma"] if check else ["-mf16c", "-mfma", "-mavx2"]
    instrument = []
    if check:
        instrument = ["-fsanitize=thread", "-fno-vectorize", "-fno-slp-vectorize",
                      "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-instrument-atomics=0"]
    own = f".{os.getpid()}"  # another process may build the same module now
    objects = [out.with_suffix(own + ".kernels.o"), out.with_suffix(own + ".hooks.o")]
    fresh = out.with_suffix(own + ".new")
    for cmd in ([CXX, *flags, *instrument, "-c", "-o", objects[0], cpp],
                [CXX, *flags, "-c", "-o", objects[1], HERE / "emu_hooks.cc"],
                [CXX, "-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-o", fresh, *objects, "-lm"]):
        done = subprocess.run([str(c) for c in cmd], text=True, capture_output=True, check=False)
        if done.stderr:
            sys.stderr.write(done.stderr)
        if done.returncode:
            raise SourceError("")
    fresh.rename(out)
    for o in objects:
        o.unlink()


def main(args):
    """Status 0 when OUT.so was written."""
    check = "--check" in args
    args = [a for a in args if a != "--check"]
    if len(args) != 2:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    source, out = map(pathlib.Path, args)
    cpp = out.with_suffix(f".{os.getpid()}.cc")
    try:
        cpp.write_text(translate(source.read_text(encoding="utf-8"), source.name), encoding="utf-8")
        compile_module(cpp, out, check)
        cpp.rename(out.with_suffix(".cc"))
    except SourceError as e:
        if str(e):
            print(f"{source.name}:{e}", file=sys.stderr)
        return 1
    except OSError as e:
        print(f"error: {e}; clang++ comes with: sh tools/deps.sh clang", file=sys.stderr)
        return 1
    finally:
        cpp.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
