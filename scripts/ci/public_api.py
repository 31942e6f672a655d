"""Lists the public interface of a package, an item per line, with its signature; and compares it with a committed list.

    public_api.py LIST.txt RUSTDOC.json [--write]

The JSON is that of `cargo rustdoc -- -Z unstable-options --output-format json`. Exits with 1, and prints the difference, if
the list is another; with `--write`, writes it. Also holds two figures of docs/design (api.md, limiter.md): how many names
the root may have, and how many methods the trait that all limiters implement. `scripts/versions names` runs this.
"""

import difflib
import json
import sys

MOST_ROOT_NAMES = 36
MOST_LIMITER_METHODS = 7


def render(kind):
    """Renders a type as in Rust."""
    if kind is None:
        return "()"
    (name, it), = kind.items() if isinstance(kind, dict) else ((kind, None),)
    if name == "resolved_path":
        return it["path"].split("::")[-1] + arguments(it["args"])
    if name in ("generic", "primitive"):
        return it
    if name == "borrowed_ref":
        lifetime = f"{it['lifetime']} " if it["lifetime"] else ""
        return f"&{lifetime}{'mut ' if it['is_mutable'] else ''}{render(it['type'])}"
    if name == "tuple":
        return f"({', '.join(map(render, it))})"
    if name == "slice":
        return f"[{render(it)}]"
    if name == "array":
        return f"[{render(it['type'])}; {it['len']}]"
    if name == "impl_trait":
        return "impl " + bounds(it)
    if name == "dyn_trait":
        traits = [one["trait"]["path"].split("::")[-1] + arguments(one["trait"]["args"]) for one in it["traits"]]
        return "dyn " + " + ".join(traits + ([it["lifetime"]] if it["lifetime"] else []))
    if name == "qualified_path":
        return f"{render(it['self_type'])}::{it['name']}"
    if name == "function_pointer":
        return signature("fn", it["sig"])
    return name


def arguments(args):
    """Renders what stands behind a path in angle brackets, or the parameters of `Fn`."""
    if not args:
        return ""
    (name, it), = args.items()
    if name == "parenthesized":
        output = f" -> {render(it['output'])}" if it["output"] else ""
        return f"({', '.join(map(render, it['inputs']))}){output}"
    parts = []
    for arg in it["args"]:
        (name_of_arg, value), = arg.items() if isinstance(arg, dict) else ((arg, None),)
        parts.append(value if name_of_arg == "lifetime" else render(value) if name_of_arg == "type" else "_")
    for constraint in it.get("constraints", []):
        (name_of_binding, value), = constraint["binding"].items()
        if name_of_binding == "equality":
            parts.append(f"{constraint['name']} = {render(value.get('type'))}")
        else:
            parts.append(f"{constraint['name']}: {bounds(value)}")
    return f"<{', '.join(parts)}>" if parts else ""


def bounds(of):
    parts = []
    for bound in of:
        (name, it), = bound.items()
        if name == "trait_bound":
            maybe = "?" if it["modifier"] == "maybe" else ""
            parts.append(maybe + it["trait"]["path"].split("::")[-1] + arguments(it["trait"]["args"]))
        elif name == "outlives":
            parts.append(it)
    return " + ".join(parts)


def parameters(generics):
    parts = []
    for one in generics["params"]:
        (name, kind), = one["kind"].items()
        if name == "type" and not kind["is_synthetic"]:
            default = f" = {render(kind['default'])}" if kind["default"] else ""
            limits = f": {bounds(kind['bounds'])}" if kind["bounds"] else ""
            parts.append(one["name"] + limits + default)
        elif name == "lifetime":
            parts.append(one["name"])
    return f"<{', '.join(parts)}>" if parts else ""


def signature(name, sig):
    inputs = []
    for parameter, kind in sig["inputs"]:
        inputs.append(render(kind) if parameter in ("", "_") else f"{parameter}: {render(kind)}")
    output = f" -> {render(sig['output'])}" if sig["output"] else ""
    return f"{name}({', '.join(inputs)}){output}"


def function(path, item):
    it = item["inner"]["function"]
    words = [word for word in ("const", "async", "unsafe") if it["header"][f"is_{word}"]]
    return " ".join([*words, "fn", signature(path + parameters(it["generics"]), it["sig"])])


class Interface:
    def __init__(self, document):
        self.index = document["index"]
        self.lines = set()
        root = self.index[str(document["root"])]
        self.crate = root["name"]
        self.root_names = set()
        self.limiter_methods = set()
        self.walk(self.crate, root, set())

    def item(self, id):
        return self.index.get(str(id))

    def walk(self, path, module, seen):
        for id in module["inner"]["module"]["items"]:
            item = self.item(id)
            if not item or item["visibility"] != "public":
                continue
            name, target = item["name"], item
            if "use" in item["inner"]:
                name, target = item["inner"]["use"]["name"], self.item(item["inner"]["use"]["id"])
                if not target:
                    self.lines.add(f"use {path}::{name}")
                    continue
            kind = next(iter(target["inner"]))
            if path == self.crate and kind != "module":
                self.root_names.add(name)
            if kind == "module" and id not in seen:
                self.lines.add(f"mod {path}::{name}")
                self.walk(f"{path}::{name}", target, seen | {id})
            elif kind != "module":
                self.print(f"{path}::{name}", target, kind)

    def print(self, path, item, kind):
        it = item["inner"][kind]
        generics = parameters(it["generics"]) if isinstance(it, dict) and "generics" in it and kind != "function" else ""
        if kind == "function":
            self.lines.add(function(path, item))
        elif kind == "type_alias":
            self.lines.add(f"type {path}{generics} = {render(it['type'])}")
        elif kind == "constant":
            self.lines.add(f"const {path}: {render(it['type'])}")
        elif kind == "trait":
            self.lines.add(f"trait {path}{generics}" + (f": {bounds(it['bounds'])}" if it["bounds"] else ""))
            for id in it["items"]:
                self.member(path, self.item(id), is_trait=True)
        else:
            self.lines.add(f"{kind} {path}{generics}")
            if kind == "struct" and isinstance(it["kind"], dict):
                fields = it["kind"].get("plain", {}).get("fields") or it["kind"].get("tuple") or []
                for id in fields:
                    field = self.item(id) if id is not None else None
                    if field and field["visibility"] == "public":
                        self.lines.add(f"field {path}::{field['name']}: {render(field['inner']['struct_field'])}")
            for id in it.get("variants", []):
                self.lines.add(f"variant {path}::{self.item(id)['name']}")
            for id in it.get("impls", []):
                self.implementation(path, self.item(id))

    def implementation(self, path, item):
        it = item["inner"]["impl"] if item else None
        if not it or it["is_synthetic"] or it["blanket_impl"]:
            return
        if it["trait"]:
            trait = it["trait"]["path"].split("::")[-1] + arguments(it["trait"]["args"])
            self.lines.add(f"impl {trait} for {path}{arguments_of(it['for'])}")
            return
        for id in it["items"]:
            member = self.item(id)
            if member and member["visibility"] == "public":
                self.member(path, member)

    def member(self, path, item, is_trait=False):
        if not item:
            return
        (kind, it), = item["inner"].items()
        name = f"{path}::{item['name']}"
        if kind == "function":
            self.lines.add(function(name, item))
            if is_trait and path.split("::")[-1] == "Limiter":
                self.limiter_methods.add(item["name"])
        elif kind == "assoc_type":
            self.lines.add(f"type {name}" + (f": {bounds(it['bounds'])}" if it["bounds"] else ""))
        elif kind == "assoc_const":
            self.lines.add(f"const {name}: {render(it['type'])}")


def arguments_of(kind):
    return arguments(kind["resolved_path"]["args"]) if "resolved_path" in kind else ""


def main():
    listed, json_path = sys.argv[1:3]
    with open(json_path) as file:
        interface = Interface(json.load(file))
    text = sorted(interface.lines, key=lambda line: line.split(" ", 1)[1])
    if interface.root_names and interface.crate == "tower_sluice":
        names, methods = len(interface.root_names), len(interface.limiter_methods)
        print(f"{interface.crate}: {len(text)} items, {names} names at the root, {methods} methods of Limiter")
        if names > MOST_ROOT_NAMES or methods > MOST_LIMITER_METHODS:
            sys.exit(f"at most {MOST_ROOT_NAMES} names, and {MOST_LIMITER_METHODS} methods: {sorted(interface.root_names)}")
    if "--write" in sys.argv:
        with open(listed, "w") as file:
            file.writelines(f"{line}\n" for line in text)
        return
    with open(listed) as file:
        before = file.read().splitlines()
    if before != text:
        print("\n".join(difflib.unified_diff(before, text, "committed", "present", lineterm="", n=0)))
        sys.exit(f"{listed} is another; see whether the change is meant, and run `scripts/versions names --write`")


main()
