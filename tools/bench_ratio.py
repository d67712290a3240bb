# SPDX-License-Identifier: MIT
"""bench_ratio.py - turns the runs of bench_cuda.sh into ratios against bars: Markdown and JSON.

usage: bench_ratio.py FOLDER OUT GPU COMMAND (MODEL BAR_PREFILL BAR_DECODE)...
FOLDER holds run.ROUND.PROGRAM.MODEL.json and identity.json; writes OUT.md and OUT.json, prints OUT.md.
Exit status 1 when a bar is missed; a bar is missed also when its ratio could not be measured.
"""
import json
import pathlib
import statistics
import sys


def rates(path, program):
    """{"prefill": tokens per second, "decode": ...} of one run: medians over its repeats."""
    out = {}
    for row in json.loads(path.read_text(encoding="utf-8")):
        kind = "prefill" if row["n_prompt"] else "decode"
        out[kind] = row["tokens_per_s_median"] if program == "isobit" else statistics.median(row["samples_ts"])
    return out


def measure(folder, model, bars):
    """One entry for each kind: rates of every round, ratio within rounds, bar."""
    name = pathlib.Path(model).name
    rounds = {}
    for path in sorted(folder.glob(f"run.*.{name}.json")):
        _, number, program = path.name[: -len(name) - 6].split(".", 2)
        rounds.setdefault(int(number), {})[program] = rates(path, program)
    rows = []
    for kind, bar in zip(("prefill", "decode"), bars):
        own = [r["isobit"][kind] for r in rounds.values()]
        peer = [r["llama.cpp"][kind] for r in rounds.values() if "llama.cpp" in r]
        ratios = [a / b for a, b in zip(own, peer)]
        ratio = statistics.median(ratios) if ratios else None
        rows.append({"model": name, "test": kind, "isobit": own, "llama.cpp": peer, "ratios": ratios, "ratio": ratio,
                     "bar": bar, "reached": ratio is not None and ratio >= bar})
    return rows


def main(folder, out, gpu, command, *models):
    folder = pathlib.Path(folder)
    identity = json.loads((folder / "identity.json").read_text(encoding="utf-8"))
    cuda = next(b for b in identity["backends"] if b["device"] == "cuda")
    kernels = next((v["kernels"] for v in cuda["levels"] if v["isa"] == cuda["auto"]), "none")
    rows = []
    for model, prefill, decode in zip(*[iter(models)] * 3):
        rows += measure(folder, model, (float(prefill), float(decode)))
    missed = [r for r in rows if not r["reached"]]
    text = [f"# isobit and llama.cpp side by side, {gpu}", "",
            f"isobit {identity['version']} ({identity['commit']}), {identity['arithmetic']}, level {cuda['auto']}, kernels {kernels}.",
            f"`{command}`, {max((len(r['isobit']) for r in rows), default=0)} rounds in turn; medians of tokens per second, "
            "ratio: median of the ratios within rounds (lowest to highest).", "",
            "| model | test | isobit | llama.cpp | ratio | bar | |", "|---|---|---|---|---|---|---|"]
    for r in rows:
        peer = f"{statistics.median(r['llama.cpp']):,.1f}" if r["llama.cpp"] else "not run"
        ratio = f"{r['ratio']:.2f} ({min(r['ratios']):.2f} to {max(r['ratios']):.2f})" if r["ratios"] else "-"
        text.append(f"| {r['model']} | {r['test']} | {statistics.median(r['isobit']):,.1f} | {peer} | {ratio} | {r['bar']} | "
                    f"{'reached' if r['reached'] else 'MISSED' if r['ratios'] else 'not measured'} |")
    text += ["", f"{len(rows) - len(missed)} of {len(rows)} bars reached."]
    pathlib.Path(out + ".md").write_text("\n".join(text) + "\n", encoding="utf-8")
    pathlib.Path(out + ".json").write_text(json.dumps(
        {"gpu": gpu, "command": command, "identity": identity, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print("\n".join(text))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
