"""Proves all lemmas, and checks the counterexamples of their broken variants, which tests feed to the Rust code.

    python run.py             # fails if a lemma is not proved, or if a counterexample is not one (any more)
    python run.py --update    # searches the counterexamples that are missing or wrong, and writes counterexamples.json
"""

import importlib
import json
import re
import sys
import time
from pathlib import Path

from lemma import LEMMAS

HERE = Path(__file__).resolve().parent
FILE = HERE / "counterexamples.json"
SUBJECTS = ["gcra", "ticks", "windows", "lua", "dynamodb", "leases", "refunds"]


def functions_that_are_missing():
    """Each lemma names a function as `file: Type::function`, which that file must have."""
    for of in sorted({lemma.of for lemma in LEMMAS}):
        file, _, name = of.partition(": ")
        text = (HERE.parent / file).read_text() if (HERE.parent / file).is_file() else ""
        owner, _, function = name.rpartition("::")
        found = file.endswith(".lua") or re.search(rf"\bfn {function}\b", text) is not None
        is_there = bool(text) and found and (not owner or re.search(rf"\b{owner}\b", text) is not None)
        if not is_there:
            yield of


def written(entries):
    """Compact, and one line for each part, so that a change is easy to read. Numbers beyond 64 bits are texts."""
    def part(name, terms):
        return f'    "{name}": ' + json.dumps({key: portable(value) for key, value in terms.items()})

    def entry(entry):
        heads = [f'    "{name}": {json.dumps(entry[name], ensure_ascii=False)}' for name in ("function", "lemma", "variant")]
        return "  {\n" + ",\n".join(heads + [part(name, entry[name]) for name in ("inputs", "right", "broken")]) + "\n  }"

    return "[\n" + ",\n".join(map(entry, entries)) + "\n]\n"


def portable(value):
    is_wide = not isinstance(value, bool) and not -(2**63) <= value < 2**64
    return str(value) if is_wide else value


def read():
    def number(value):
        return int(value) if isinstance(value, str) else value

    entries = json.loads(FILE.read_text()) if FILE.is_file() else []
    for entry in entries:
        for part in ("inputs", "right", "broken"):
            entry[part] = {name: number(value) for name, value in entry[part].items()}
    return {(entry["function"], entry["lemma"], entry["variant"]): entry for entry in entries}


def main(update):
    for subject in SUBJECTS:
        importlib.import_module(subject)
    failures = [f"{of}: there is no such function" for of in functions_that_are_missing()]
    known, entries = read(), []
    for lemma in LEMMAS:
        begun = time.monotonic()
        problem = lemma.problem()
        for variant in lemma.broken:
            key = (lemma.of, lemma.says, variant)
            found = known.pop(key, None)
            if found is None or not lemma.still_holds(variant, found):
                found = lemma.counterexample(variant) if update else None
            if found is None:
                hint = "no counterexample is found" if update else "its counterexample is missing or wrong: scripts/prove --update"
                problem = problem or f"{variant}: {hint}"
            else:
                entries.append({"function": lemma.of, "lemma": lemma.says, "variant": variant} | found)
        seconds = time.monotonic() - begun
        slow = f"  ({seconds:.1f} s)" if seconds > 2 else ""
        print("proved " if problem is None else "FAILED ", lemma.name() + slow, flush=True)
        if problem:
            failures.append(f"{lemma.name()}\n    {problem}")
    if update:
        FILE.write_text(written(entries))
    else:
        failures += [f"{' / '.join(key)}: a counterexample of no lemma: scripts/prove --update" for key in known]
    print(f"{len(LEMMAS)} lemmas, {len(entries)} counterexamples, {len(failures)} failures")
    for failure in failures:
        print(f"  {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    names = [argument for argument in sys.argv[1:] if argument != "--update"]
    SUBJECTS = names or SUBJECTS
    sys.exit(main("--update" in sys.argv))
