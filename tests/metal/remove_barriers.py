# SPDX-License-Identifier: MIT
"""remove_barriers.py - takes one barrier at a time out of the Metal kernels; the emulator must see that it is gone.

usage: remove_barriers.py BUILD [FIRST [LAST]]     numbers of barriers, from 1; all without them

Proof that the checks of the emulator (an EMULATION on the CPU) and the tests of the kernels reach every barrier.
Run in the project's root after: make METAL=emulated BUILD=BUILD BUILD/tests/cuda/gpu_ops. Takes half a minute for
each barrier. Ends with "N passed, N failed".
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BARRIER = re.compile(r"(?:if \(\w+\) )?(?:metal::)?(?:threadgroup|simdgroup)_barrier\([^;]*\);")
LIMIT_S = 900


def libraries():
    """What the test program is linked with."""
    names = ["libssl", "libcrypto", "sqlite3", "jansson", "libpcre2-8", "libutf8proc"]
    out = subprocess.run(["pkg-config", "--libs", *names], capture_output=True, text=True, check=True)
    return out.stdout.split() + ["-lm", "-pthread"]


def kernels(folder):
    """The flattened text of all kernels."""
    out = folder / "all.metal"
    sources = sorted(str(p) for p in pathlib.Path("src/kernels").glob("*/*_metal.metal"))
    subprocess.run([sys.executable, "tools/flatten_metal.py", str(out), *sources], check=True)
    return out.read_text(encoding="utf-8")


def build(folder, text, objects, libs):
    """The program of operations with this text as its kernels: the object comes before the archive's own."""
    source, program = folder / "source.c", folder / "operations"
    source.write_text('#include "device/metal_source.h"\nconst char iso_metal_source[] = {'
                      + ",".join(map(str, text.encode())) + "};\n"
                      "const size_t iso_metal_source_len = sizeof(iso_metal_source);\n", encoding="utf-8")
    cc = os.environ.get("CC", "cc")
    subprocess.run([cc, "-Isrc", "-c", "-o", str(folder / "source.o"), str(source)], check=True)
    subprocess.run([cc, "-o", str(program), str(folder / "source.o"), *objects, *libs], check=True)
    return program


def run(folder, program):
    """(found, what it said): the operations with every access checked."""
    cache = folder / "modules"
    shutil.rmtree(cache, ignore_errors=True)
    env = dict(os.environ, ISO_METAL_CHECK="1", ISO_METAL_CACHE=str(cache))
    try:
        done = subprocess.run([str(program), "metal", "1", "1"], env=env, capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return False, f"no end within {LIMIT_S} s"
    said = re.search(r"kernel \w+, group[^\n]*", done.stdout + done.stderr)
    return done.returncode != 0 and said is not None, said.group() if said else "not seen"


def main(args):
    """Status 0 when each removed barrier was seen."""
    if not 1 <= len(args) <= 3:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    made = pathlib.Path(args[0])
    helpers = [str(p) for p in (made / "tests/cuda").glob("*.c.o") if not p.name.startswith("gpu_")]
    objects = [str(made / "tests/cuda/gpu_ops.c.o"), *helpers, str(made / "libisobit.a")]
    passed = failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text, libs = kernels(folder), libraries()
        places = list(BARRIER.finditer(text))
        first = int(args[1]) if len(args) > 1 else 1
        last = int(args[2]) if len(args) > 2 else first if len(args) > 1 else len(places)
        for number, m in enumerate(places[first - 1:last], first):
            line = text.count("\n", 0, m.start()) + 1
            found, said = run(folder, build(folder, text[:m.start()] + ";" + text[m.end():], objects, libs))
            passed, failed = passed + found, failed + (not found)
            print(f"{'ok  ' if found else 'FAIL'} barrier {number}, line {line}: {said}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
