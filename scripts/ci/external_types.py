"""Lists the crates whose types and traits are in the public interface, and compares them with a committed list.

    external_types.py LIST.md RUSTDOC.json...

The JSON is that of `cargo rustdoc -- -Z unstable-options --output-format json`. The list has one row per package and
crate, `| package | crate | ... | what is named |`; other columns are prose. Exits with 1, and prints the rows that the list
should have, if they differ. `scripts/versions api` runs this.
"""

import json
import re
import sys
from collections import defaultdict

# Part of the language: their versions are that of Rust.
STANDARD = {"std", "core", "alloc"}


def paths(node):
    """Yields the ids of all types and traits that are named somewhere below this node."""
    if isinstance(node, dict):
        if "id" in node and ("path" in node or "trait_name" in node):
            yield node["id"]
        # A re-export names its source.
        if "source" in node and "is_glob" in node and node["id"] is not None:
            yield node["id"]
        for child in node.values():
            yield from paths(child)
    elif isinstance(node, list):
        for child in node:
            yield from paths(child)


def skipped(index):
    """The items of no interest: implementations for every type, which are written elsewhere, and what is in them."""
    result = set()
    for key, item in index.items():
        implementation = item["inner"].get("impl")
        if implementation and (implementation["is_synthetic"] or implementation["blanket_impl"]):
            result.add(key)
            result.update(str(id) for id in implementation["items"])
    return result


def external_types(document):
    """The names of the types and traits of other crates in the public interface, by crate."""
    index, table = document["index"], document["paths"]
    own = index[str(document["root"])]["name"]
    skip = skipped(index)
    found = defaultdict(set)
    for key, item in index.items():
        if item["crate_id"] != 0 or key in skip:
            continue
        for id in paths(item["inner"]):
            summary = table.get(str(id))
            if summary and summary["crate_id"] != 0:
                crate = document["external_crates"][str(summary["crate_id"])]["name"]
                if crate not in STANDARD:
                    found[crate].add(summary["path"][-1])
    if not any(item["inner"].get("impl") for item in index.values()):
        sys.exit(f"{own}: the JSON has no implementation; has the format of rustdoc changed?")
    return own, found


def listed(text):
    """The rows of the committed list: (package, crate) and the names in the last column."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| `") and len(cells) >= 3:
            rows[cells[0].strip("`"), cells[1].strip("`")] = set(re.findall(r"`([^`]+)`", cells[-1]))
    return rows


def main(list_path, *documents):
    with open(list_path, encoding="utf-8") as file:
        rows = listed(file.read())
    found = {}
    for path in documents:
        with open(path, encoding="utf-8") as file:
            own, crates = external_types(json.load(file))
        found.update({(own, crate): names for crate, names in crates.items()})
    if not found:
        sys.exit("no type of another crate found; has the format of rustdoc changed?")
    wrong = sorted(key for key in found.keys() | rows.keys() if found.get(key) != rows.get(key))
    for package, crate in wrong:
        names = found.get((package, crate))
        if names is None:
            print(f"no longer in the interface: {package}, {crate}")
        else:
            print(f"| `{package}` | `{crate}` | … | {', '.join(f'`{name}`' for name in sorted(names))} |")
    if wrong:
        sys.exit(f"{list_path} is not what the public interface names: see the rows above")
    print(f"{len(found)} rows, as listed")


main(*sys.argv[1:])
