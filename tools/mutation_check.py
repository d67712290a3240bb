# SPDX-License-Identifier: MIT
"""mutation_check.py - tests the tests: one changed operation at a time, and the golden tests must fail.

usage: mutation_check.py [--jobs N] [--only WORD] [--keep] [--list]

tests/mutation/*.txt lists the mutants: a text of a source file, what replaces it, and the tests that must
see it. The project is copied to build/mutation with the reference kernels as its only variants and with
the self-check at start switched off: what fails is then the golden data and the units, not a comparison
with another variant. Of each mutant only the objects that read the changed file and that its tests use are
compiled. Failures, each by name: a mutant that survives, one whose text is not found exactly once, one that
does not compile; and a control, the unchanged copy, that does not pass. Ends with "N passed, N failed".
"""
import argparse
import concurrent.futures
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutation"
LIMIT_S = 300  # of one command; a mutant that hangs is seen, too
GOLDEN = pathlib.Path("tests/golden")

KERNELS = {op: f"src/kernels/{op}/{op}_ref.c" for op in
           ("attention", "embed", "heads", "logits", "matmul", "norm", "quantize")}
SAMPLER = ["src/engine/sampler.c", "src/engine/sampler_select.c", "src/engine/sampler_weights_ref.c"]
# name -> (test program, sources under test that may have to be compiled anew)
UNITS = {
    "primitives": ("tests/arith/test_primitives", []),
    "rope": ("tests/arith/test_rope", ["src/arith/rope.c"]),
    "quantize": ("tests/kernels/check_quantize", [KERNELS["quantize"]]),
    "norm": ("tests/kernels/check_norm", [KERNELS["norm"]]),
    "heads": ("tests/kernels/check_heads", [KERNELS["heads"], "src/arith/rope.c"]),
    "attention": ("tests/kernels/check_attention", [KERNELS["attention"], KERNELS["heads"]]),
    "matmul": ("tests/kernels/check_matmul", [KERNELS["matmul"], KERNELS["quantize"]]),
    "embed": ("tests/kernels/check_embed", [KERNELS["embed"]]),
    "logits": ("tests/kernels/check_logits", [KERNELS["logits"]]),
    "sampler": ("tests/engine/test_sampler", SAMPLER),
    # Computed from the specification by tests/vectors/make_vectors.py.
    "vectors": ("tests/kernels/check_vectors", list(KERNELS.values())),
    "rope-vectors": ("tests/arith/test_rope_vectors", ["src/arith/rope.c"]),
    "sampler-vectors": ("tests/engine/test_sampler_vectors", SAMPLER),
    "score-scale": ("tests/model/test_score_scale", ["src/model/family.c"]),
}
# Tests of a unit that compare variants with the reference: here they would compare it with itself, slowly.
AMONG_VARIANTS = {"tests/kernels/check_matmul.c": ("test_random", "test_large"),
                  "tests/kernels/check_attention.c": ("test_random",)}
PROGRAM = ("src/cli/main", [*KERNELS.values(), "src/arith/rope.c", "src/model/family.c"])
# name -> (model, ids, expected lines, positions)
DIGESTS = {f"mini-{m}": (f"mini-{m}.gguf", "smollm2-135m/long.ids", f"mini/{m}.expect", 66)
           for m in ("llama", "qwen2", "qwen3", "muse-glimmer")}
DIGESTS["gemma3"] = ("gemma-3-270m-q4_k_m.gguf", "gemma3-270m/short.ids", "gemma3-270m/short.expect", 3)


class Failed(Exception):
    """A mutant or a control that is not as it must be; the text says why."""


# --- the list -----------------------------------------------------------------------------------------

def read_mutants(path):
    """The mutants of one file; see tests/mutation/README.md for its form."""
    mutants, m = [], None
    for n, line in enumerate(path.read_text().splitlines(), 1):
        word, _, rest = line.partition(" ")
        if line.startswith("-") and m:
            m["old"].append(line[1:])
        elif line.startswith("+") and m:
            m["new"].append(line[1:])
        elif word == "mutant":
            m = dict(name=rest, file=None, tests=[], old=[], new=[], at=f"{path.name}:{n}")
            mutants.append(m)
        elif word == "file" and m:
            m["file"] = rest
        elif word == "tests" and m:
            m["tests"] = rest.split()
        elif line and not line.startswith("#"):
            sys.exit(f"{path}:{n}: not understood: {line}")
    for m in mutants:
        m["old"], m["new"] = "\n".join(m["old"]), "\n".join(m["new"])
        unknown = [t for t in m["tests"] if t not in UNITS and t not in DIGESTS]
        if not m["file"] or not m["tests"] or not m["old"] or unknown:
            sys.exit(f"{m['at']}: {m['name']}: needs file, tests, old text; unknown tests: {unknown}")
    return mutants


# --- the copy -----------------------------------------------------------------------------------------

def substitute(path, pattern, new, what):
    """Replaces the one place where pattern matches."""
    text, n = re.subn(pattern, new, path.read_text(), flags=re.S)
    if n != 1:
        raise Failed(f"{path}: {what}: found {n} times")
    path.write_text(text)


def make_copy(tree):
    """The project with the reference kernels alone and without the self-check at start."""
    shutil.rmtree(WORK, ignore_errors=True)
    tree.mkdir(parents=True)
    shutil.copy2(ROOT / "Makefile", tree)
    ignore = shutil.ignore_patterns("*_avx2.c", "*_avx512.c", "*_vnni.c", "*_neon.c", "*.cu", "golden", "corpus")
    for d in ("include", "src", "tests"):
        shutil.copytree(ROOT / d, tree / d, ignore=ignore)
    (tree / GOLDEN).symlink_to(ROOT / GOLDEN)
    for f in sorted(tree.glob("src/*/*.def")) + sorted(tree.glob("src/*/*/*.def")):
        if "X(ref," in f.read_text():
            substitute(f, r"#if .*#endif\n", "", "variants beside ref")
    substitute(tree / "src/kernels/shared/cpu.c", r'(\{"ref", ISO_CPU_REF\},\n).*?(\n\};)', r"\1\2", "levels")
    for file, tests in AMONG_VARIANTS.items():
        for test in tests:
            substitute(tree / file, rf"cmocka_unit_test\({test}\),", "", test)
    substitute(tree / "src/device/self_check.c", r"if \(strcmp\(hex, expected\) != 0\)",
               "if (strcmp(hex, expected) == 1000)", "the self-check's answer")


def run(tree, *command, **more):
    """A command in a tree: (status, output)."""
    try:
        p = subprocess.run(command, cwd=tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=LIMIT_S, errors="replace", **more)
    except subprocess.TimeoutExpired:
        return 124, f"no end within {LIMIT_S} s"
    return p.returncode, p.stdout


def must(tree, *command):
    """A command that has to work."""
    status, out = run(tree, *command)
    if status:
        raise Failed("\n".join(out.splitlines()[-15:]) or f"status {status}: {command}")
    return out


def compiler_flags():
    """As fast as reference kernels get: their fused multiply-add as one instruction where there is one."""
    try:
        has_fma = " fma " in pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        has_fma = False
    return "CFLAGS=-O2" + (" -mfma" if has_fma else "")


def make(tree, build, *goals, jobs=1):
    """Goals of the project's Makefile in a tree, with objects in a folder of its own."""
    must(tree, "make", "-s", f"-j{jobs}", f"BUILD={build}", compiler_flags(), *(f"{build}/{g}" for g in goals))


def programs():
    """Everything that is linked: program -> sources under test."""
    return dict([*UNITS.values(), PROGRAM])


def helper_objects(tree, program):
    """Objects of a program besides the archive: its own, and for a test those that its area shares."""
    area, own = (tree / program).parent, f"{program}.c.o"
    if program == PROGRAM[0]:
        return [own]
    shared = [f for f in sorted(area.glob("*.c")) if not re.match(r"(test|check)_", f.name)]
    return [own] + [f"{f.relative_to(tree)}.o" for f in shared]


class Tree:
    """A copy with its pristine objects in obj/ and a mutant's in mut/."""

    def __init__(self, path, libs):
        self.path, self.libs, self.deps = path, libs, {}
        for d in (path / "obj").rglob("*.d"):
            words = d.read_text().replace("\\\n", " ").split()
            self.deps[str(d.relative_to(path / "obj"))[:-2] + ".o"] = set(words[1:])

    def link(self, program, file):
        """The program with every object that reads file compiled anew. Returns its path."""
        # Where `tests:` names a unit, its sources under test and its own objects are all that can differ.
        own = helper_objects(self.path, program)
        changed = [o for o in own + [f"{s}.o" for s in programs()[program]] if file in self.deps.get(o, ())]
        todo = [o for o in changed if not (self.path / "mut" / o).exists()]
        if todo:
            make(self.path, "mut", *todo)
        objects = [f"{'mut' if o in changed else 'obj'}/{o}" for o in own]
        objects += [f"mut/{o}" for o in changed if o not in own]  # in front of the archive: its member stays out
        out = f"mut/{program}"
        (self.path / out).parent.mkdir(parents=True, exist_ok=True)
        must(self.path, os.environ.get("CC", "cc"), "-o", out, *objects, "obj/libisobit.a", *self.libs)
        return out

    def test(self, name, program):
        """Whether a unit or digest passes: (status, output)."""
        if name in UNITS:
            return run(self.path, program)
        model, ids, expect, n = DIGESTS[name]
        models = os.environ.get("ISOBIT_MODELS") or os.path.expanduser("~/.cache/isobit/models")
        status, out = run(self.path, program, "digest", f"{models}/{model}", GOLDEN / ids, "--isa", "ref",
                          "-n", str(n), "--threads", "1")
        want = (ROOT / GOLDEN / expect).read_text().splitlines()[:n]
        return status or out.splitlines()[:n] != want, out


# --- mutants --------------------------------------------------------------------------------------------

def kill(tree, m):
    """Runs a mutant until a test fails; returns that test's name."""
    path = tree.path / m["file"]
    text = path.read_text()
    n = text.count(m["old"])
    if n != 1:
        raise Failed(f"its text is {n} times in {m['file']}: the mutant has to follow the source")
    shutil.rmtree(tree.path / "mut", ignore_errors=True)
    try:
        path.write_text(text.replace(m["old"], m["new"]))
        for name in m["tests"]:
            program = UNITS[name][0] if name in UNITS else PROGRAM[0]
            status, _ = tree.test(name, tree.link(program, m["file"]))
            if status:
                return name
    finally:
        path.write_text(text)
    raise Failed(f"survives {' '.join(m['tests'])}: no test sees it")


def control(tree, name):
    """The unchanged copy passes."""
    program = UNITS[name][0] if name in UNITS else "isobit"
    status, out = tree.test(name, f"obj/{program}")
    if status:
        raise Failed("fails without a mutant\n" + "\n".join(out.splitlines()[-15:]))
    return "passes"


def prepare(jobs):
    """Builds the copy once and copies it for each worker."""
    first = WORK / "0"
    make_copy(first)
    make(first, "obj", "isobit", *(p for p, _ in UNITS.values()), jobs=jobs)
    packages = re.search(r"^PKGS := (.*)$", (first / "Makefile").read_text(), re.M).group(1).split()
    libs = [*must(ROOT, os.environ.get("PKG_CONFIG", "pkg-config"), "--libs", *packages).split(), "-lm", "-pthread",
            "-lcmocka"]
    trees = queue.Queue()
    for i in range(jobs):
        path = WORK / str(i)
        if i:
            shutil.copytree(first, path, symlinks=True)
        trees.put(Tree(path, libs))
    return trees


def run_all(work, trees, jobs):
    """Every (title, function of a tree) on the trees; prints a line each, returns how many failed."""
    def one(item):
        title, what = item
        tree, since = trees.get(), time.monotonic()
        try:
            state, detail = "ok", what(tree)
        except Failed as e:
            state, detail = "FAIL", str(e)
        finally:
            trees.put(tree)
        print(f"{state:4} {time.monotonic() - since:6.1f} s  {title}: {detail}", flush=True)
        return state != "ok"
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return sum(pool.map(one, work))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
    p.add_argument("--only", default="", help="only mutants whose name or file contains this")
    p.add_argument("--keep", action="store_true", help="leave build/mutation")
    p.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    args = p.parse_args()
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ISO_LOG", "ISO_CPU_MASK"):  # an outer make must not steer
        os.environ.pop(name, None)
    os.environ["CHECK_SEED"] = "1"  # random tests must not make a mutant's fate a matter of luck
    mutants = [m for f in sorted((ROOT / "tests/mutation").glob("*.txt")) for m in read_mutants(f)]
    names = [m["name"] for m in mutants]
    if len(set(names)) != len(names):
        sys.exit(f"two mutants have one name: {sorted({n for n in names if names.count(n) > 1})}")
    mutants = [m for m in mutants if args.only in m["name"] or args.only in m["file"]]
    if args.list or not mutants:
        print("\n".join(f"{m['name']} ({m['file']})" for m in mutants) or f"no mutant with '{args.only}'")
        return 0 if mutants else 1
    tests = sorted({t for m in mutants for t in m["tests"]})
    try:
        trees = prepare(args.jobs)
    except Failed as e:
        print(f"FAIL the copy: {e}\n0 passed, 1 failed")
        return 1
    work = [("control make_vectors.py", lambda tree: must(ROOT, sys.executable, "tests/vectors/make_vectors.py",
                                                          "--check") or "passes")]
    work += [(f"control {t}", lambda tree, t=t: control(tree, t)) for t in tests]
    work += [(m["name"], lambda tree, m=m: "killed by " + kill(tree, m)) for m in mutants]
    failed = run_all(work, trees, args.jobs)
    if not args.keep:
        shutil.rmtree(WORK, ignore_errors=True)
    print(f"{len(work) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
