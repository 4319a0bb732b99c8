#!/usr/bin/env python3
"""Joins the page's files and the library d3 into two texts; `tidepool trace html` writes a trace between
them.

usage: embed.py OUTPUT.c PAGE_FOLDER MODULES_FOLDER LICENCES_FOLDER

The page uses the modules of d3 that are listed below: MODULES_FOLDER/d3-NAME/dist/d3-NAME.min.js (Debian's
packages node-d3-* install them in /usr/share/nodejs) with LICENCES_FOLDER/node-d3-NAME/copyright. The page
names the authors and licence of each module, and contains the text of each licence, before the code.
"""
import re
import sys
from pathlib import Path

# Each module needs only modules before it.
MODULES = "array color path time format collection time-format interpolate selection shape scale axis".split()
SCRIPTS = "data lod path heat tracks details picture view ui".split()


def stanzas(text):
    for stanza in re.split(r"\n\s*\n", text):
        fields, name = {}, None
        for line in stanza.splitlines():
            if line[:1] not in (" ", "\t") and ":" in line:
                name, value = line.split(":", 1)
                fields[name] = value.strip()
            elif name:
                fields[name] += "\n" + re.sub(r"^ \.?", "", line)
        yield fields


def licence_of(path):
    """Returns (authors, licence) for the library's own files (not for Debian's), and the texts of these
    licences by name."""
    found = list(stanzas(path.read_text(encoding="utf-8")))
    own = [fields for fields in found if "Files" in fields and not fields["Files"].startswith("debian/")]
    if not own:
        sys.exit(f"{path}: names no author of the library's files")
    texts = {fields["License"].split("\n")[0]: fields["License"].split("\n", 1)[1]
             for fields in found if "Files" not in fields and "\n" in fields.get("License", "")}
    texts.update({fields["License"].split("\n")[0]: fields["License"].split("\n", 1)[1]
                  for fields in own if "\n" in fields.get("License", "")})
    for fields in own:
        if fields["License"].split("\n")[0].lower() not in (name.lower() for name in texts):
            sys.exit(f"{path}: has no text of the licence {fields['License']}")
    authors = [(fields["Copyright"].strip(), fields["License"].split("\n")[0]) for fields in own]
    used = {name.lower() for _, name in authors}
    return authors, {name: text for name, text in texts.items() if name.lower() in used}


def licences(folder):
    lines, texts = [], {}
    for module in MODULES:
        authors, named = licence_of(folder / f"node-d3-{module}" / "copyright")
        lines += [f"d3-{module}: Copyright {who}; {licence}" for who, licence in authors]
        for name, text in named.items():
            texts.setdefault(" ".join(text.split()).lower(), (name, text))
    for name, text in texts.values():
        lines += ["", f"{name}:", text.strip("\n")]
    return "\n".join(lines)


def plain(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def script(text, name):
    if re.search(r"</script|<!--", text, re.I):
        sys.exit(f"{name}: holds </script or <!--, which would end it inside a page")
    return text


def page(folder, modules, texts):
    folder, modules, texts = Path(folder), Path(modules), Path(texts)
    library = "".join(script((modules / f"d3-{name}/dist/d3-{name}.min.js").read_text(encoding="utf-8"), name) + "\n"
                      for name in MODULES)
    own = "".join(script((folder / f"{name}.js").read_text(encoding="utf-8"), name) for name in SCRIPTS)
    parts = {"css": (folder / "page.css").read_text(encoding="utf-8"), "licences": plain(licences(texts)),
        "library": library,
             "scripts": "(() => {\n'use strict';\n" + own + "})();\n"}
    text = (folder / "page.html").read_text(encoding="utf-8")
    text = re.sub(r"@(css|licences|library|scripts)@", lambda found: parts[found.group(1)], text)
    head, tail = text.split("@trace@")
    return head.encode(), tail.encode()


def numbers(name, data):
    rows = [",".join(map(str, data[at:at + 40])) for at in range(0, len(data), 40)]
    return f"const unsigned char {name}[] = {{\n" + ",\n".join(rows) + f"}};\nconst size_t {name}_bytes = {len(data)};\n"


def main(output, folder, modules, texts):
    head, tail = page(folder, modules, texts)
    Path(output).write_text("/* Made by embed.py. */\n#include \"tools/trace/page/page.h\"\n\n" +
                            numbers("tide_trace_page_head", head) + numbers("tide_trace_page_tail",
                                tail), encoding="ascii")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
