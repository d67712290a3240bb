#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""template_oracle.py - renders chat templates with Python's jinja2, as transformers does.

usage: template_oracle.py --now UNIX_TIME [--conversations DIR] [--snippets FILE] TEMPLATE...

A TEMPLATE is a .jinja file or a .gguf file with the key tokenizer.chat_template. Prints one JSON
object a line: first {"template", "source"} for each template, then one for each template and
conversation (every .json file of DIR, by name):
    {"template", "conversation", "ok": true, "text"}             rendered
    {"template", "conversation", "ok": false, "raised": message} the template called raise_exception
    {"template", "conversation", "ok": false, "error": text}     any other error, also at load
FILE is a JSON array of small templates; its first element is a conversation for the others,
reported under the template name "snippet N". Needs Python 3 with jinja2.
"""
import argparse
import datetime
import functools
import glob
import json
import os
import struct
import sys

try:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    sys.exit("template_oracle.py: python3 has no jinja2 (Debian package python3-jinja2)")


class Raised(Exception):
    """The template called raise_exception."""


class Generation(jinja2.ext.Extension):
    """{% generation %} as in transformers: the body is a call block of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_run")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


def environment(now):
    """The environment of transformers.utils.chat_template_utils, with a fixed time."""

    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads  # our extension, see docs/templates.md
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: datetime.datetime.fromtimestamp(now).strftime(fmt)
    return env


def gguf_template(path):
    """The string under tokenizer.chat_template of a GGUF file, or None."""
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    with open(path, "rb") as f:

        def number(fmt):
            return struct.unpack("<" + fmt, f.read(struct.calcsize(fmt)))[0]

        def string():
            return f.read(number("Q"))

        def skip(kind):
            if kind == 8:
                string()
            elif kind == 9:
                item, count = number("I"), number("Q")
                if item in sizes:
                    f.seek(sizes[item] * count, 1)
                else:
                    for _ in range(count):
                        skip(item)
            else:
                f.seek(sizes[kind], 1)

        if f.read(4) != b"GGUF":
            sys.exit(f"template_oracle.py: {path} is not a GGUF file")
        number("I"), number("Q")
        for _ in range(number("Q")):
            key, kind = string(), number("I")
            if key == b"tokenizer.chat_template":
                return string().decode()
            skip(kind)
    return None


def render(template, variables):
    """The result part of one output line. template: a function that gives the compiled template."""
    try:
        text = template().render(**variables)
        text.encode()
        return {"ok": True, "text": text}
    except Raised as e:
        return {"ok": False, "raised": str(e)}
    except Exception as e:  # whatever Python says, the template failed
        return {"ok": False, "error": f"{type(e).__name__}: {e}"}


def variables_of(conversation):
    """Keyword arguments of render(), as transformers passes them."""
    return {"messages": conversation["messages"], "tools": conversation.get("tools"),
            "documents": None,
            "add_generation_prompt": conversation.get("add_generation_prompt", False),
            "bos_token": "<BOS>", "eos_token": "<EOS>", **conversation.get("extra", {})}


def emit(**line):
    print(json.dumps(line), flush=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--now", type=int, required=True)
    parser.add_argument("--conversations")
    parser.add_argument("--snippets")
    parser.add_argument("templates", nargs="*")
    args = parser.parse_args()
    env = environment(args.now)
    compiled = functools.cache(env.from_string)
    sources = {}
    for path in args.templates:
        if path.endswith(".gguf"):
            source = gguf_template(path)
            if source is None:
                continue
        else:
            with open(path, encoding="utf-8", newline="") as f:
                source = f.read()
        sources[path] = source
        emit(template=path, source=source)
    for file in sorted(glob.glob(os.path.join(args.conversations or "", "*.json"))):
        with open(file, encoding="utf-8") as f:
            variables = variables_of(json.load(f))
        for path, source in sources.items():
            emit(template=path, conversation=os.path.basename(file),
                 **render(functools.partial(compiled, source), variables))
    if args.snippets:
        with open(args.snippets, encoding="utf-8") as f:
            first, *snippets = json.load(f)
        variables = variables_of(first)
        for i, source in enumerate(snippets):
            emit(template=f"snippet {i}", source=source,
                 **render(functools.partial(compiled, source), variables))


main()
