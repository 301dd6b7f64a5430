"""Prints how many keys of recipes are one row of one table, as OK/TOTAL and a verdict. Usage: one_key.py ROOT

The keys are in docs/recipe.schema.json, which a test compares with the tables. A row has the key's name once, in
a `settings!` table of crates/model-center-recipe/src/recipe/keys. What else counts against a key goes to stderr: a text
of the page outside its row; a name of a key in the code of any crate that no row has.
"""

import json
import re
import sys
from pathlib import Path

TABLES = "crates/model-center-recipe/src/recipe/keys"
HEAD = re.compile(r'(?:struct|const) \w+ in "([a-z_.]+)"')
ROW = re.compile(r"^        (?:pub(?:\(\w+\))? )?([a-z0-9_]+)(?:: [^=\n]*= \w+\(|, \")", re.MULTILINE)


def keys_of(schema, prefix=""):
    """The dotted names of all keys, with their descriptions."""
    for name, value in schema["properties"].items():
        path = f"{prefix}{name}"
        if "description" in value:
            yield path, value["description"]
        else:
            yield from keys_of(value, f"{path}.")


def rows(root):
    """The key of every row, with its file."""
    for path in sorted((root / TABLES).glob("*.rs")):
        for table in path.read_text().split("settings! {")[1:]:
            table = table.split("\n}\n")[0]
            yield from ((f"{HEAD.search(table).group(1)}.{name}", path) for name in ROW.findall(table))


def main():
    root = Path(sys.argv[1])
    keys = dict(keys_of(json.loads((root / "docs/recipe.schema.json").read_text())))
    found = [key for key, _ in rows(root)]
    wrong = {key for key in keys if found.count(key) != 1} | set(found) - set(keys)
    for key in sorted(wrong):
        print(f"{key}: {found.count(key)} rows", file=sys.stderr)
    named = re.compile(r'"((?:%s)\.[a-z0-9_.]+)"' % "|".join(sorted({key.split(".")[0] for key in keys})))
    tables = {key.rsplit(".", 1)[0] for key in keys}
    recipe = root / "crates/model-center-recipe/src/recipe"
    for path in sorted(recipe.rglob("*.rs")):
        code = path.read_text().split("#[cfg(test)]")[0]
        code = re.sub(r"//[^\n]*", "", code)
        for name in set(named.findall(code)) - set(keys) - tables:
            print(f"{path.relative_to(root)}: unknown key {name}", file=sys.stderr)
            wrong.add(name)
    total = len(keys)
    ok = total - len(wrong)
    print(f"{ok}/{total}", "ok" if ok == total > 0 else "short")


main()
