"""Proves all lemmas, and checks the counterexamples of their broken variants, which tests feed to the Rust code.

python run.py             # fails if a lemma is not proved, or if a counterexample is not one (any more)
python run.py --update    # searches the counterexamples that are missing or wrong, and writes counterexamples.json
"""

import importlib
import json
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from lemma import LEMMAS

HERE = Path(__file__).resolve().parent
FILE = HERE / "counterexamples.json"
SUBJECTS = ["gcra", "ticks", "windows", "lua", "dynamodb", "postgres", "leases", "refunds", "formula"]


def functions_that_are_missing(lemmas):
    """Each lemma names a function as `file: Type::function`, or a constant, which that file must have."""
    for of in sorted({lemma.of for lemma in lemmas}):
        file, _, name = of.partition(": ")
        text = (HERE.parent.parent / file).read_text() if (HERE.parent.parent / file).is_file() else ""
        owner, _, function = name.rpartition("::")
        found = file.endswith(".lua") or re.search(rf"\b(fn|const) {function}\b", text) is not None
        is_there = bool(text) and found and (not owner or re.search(rf"\b{owner}\b", text) is not None)
        if not is_there:
            yield of


def written(entries):
    """Compact, and one line for each part, so that a change is easy to read. Numbers beyond 64 bits are texts."""

    def part(name, terms):
        return f'    "{name}": ' + json.dumps({key: portable(value) for key, value in terms.items()})

    def entry(entry):
        heads = [
            f'    "{name}": {json.dumps(entry[name], ensure_ascii=False)}' for name in ("function", "lemma", "variant")
        ]
        return (
            "  {\n" + ",\n".join(heads + [part(name, entry[name]) for name in ("inputs", "right", "broken")]) + "\n  }"
        )

    return "[\n" + ",\n".join(map(entry, entries)) + "\n]\n"


def portable(value):
    is_wide = not isinstance(value, bool) and not -(2**63) <= value < 2**64
    return str(value) if is_wide else value


def key_of(entry):
    return entry["function"], entry["lemma"], entry["variant"]


def read():
    def number(value):
        return int(value) if isinstance(value, str) else value

    entries = json.loads(FILE.read_text()) if FILE.is_file() else []
    for entry in entries:
        for part in ("inputs", "right", "broken"):
            entry[part] = {name: number(value) for name, value in entry[part].items()}
    return {key_of(entry): {part: entry[part] for part in ("inputs", "right", "broken")} for entry in entries}


def prove(subject, known, update):
    """Proves one subject's lemmas. Returns their number, the failures and the counterexamples, in order."""
    importlib.import_module(subject)
    failures, entries = [], []
    own = [lemma for lemma in LEMMAS if lemma.subject == subject]
    for of in functions_that_are_missing(own):
        failures.append(f"{of}: there is no such function")
    for lemma in own:
        begun = time.monotonic()
        problem = lemma.problem()
        for variant in lemma.broken:
            found = known.get((lemma.of, lemma.says, variant))
            if found is None or not lemma.still_holds(variant, found):
                found = lemma.counterexample(variant) if update else None
            if found is not None:
                entries.append({"function": lemma.of, "lemma": lemma.says, "variant": variant} | found)
            elif problem is None:
                hint = (
                    "no counterexample is found"
                    if update
                    else "its counterexample is missing or wrong: scripts/ci/prove --update"
                )
                problem = f"{variant}: {hint}"
        seconds = time.monotonic() - begun
        slow = f"  ({seconds:.1f} s)" if seconds > 5 else ""
        # In one piece, since the processes share the output.
        sys.stdout.write(f"{'proved' if problem is None else 'FAILED'}  {lemma.name()}{slow}\n")
        sys.stdout.flush()
        if problem:
            failures.append(f"{lemma.name()}\n    {problem}")
    return len(own), failures, entries


def main(subjects, update):
    known = read()
    with ProcessPoolExecutor(len(subjects)) as pool:
        proofs = list(pool.map(prove, subjects, [known] * len(subjects), [update] * len(subjects)))
    lemmas = sum(count for count, _, _ in proofs)
    failures = [failure for _, failures, _ in proofs for failure in failures]
    entries = [entry for _, _, entries in proofs for entry in entries]
    if update:
        FILE.write_text(written(entries))
    elif [key_of(entry) for entry in entries] != list(known):
        failures.append("counterexamples.json has others, or in another order: scripts/ci/prove --update")
    print(f"{lemmas} lemmas, {len(entries)} counterexamples, {len(failures)} failures")
    for failure in failures:
        print(f"  {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(SUBJECTS, "--update" in sys.argv))
