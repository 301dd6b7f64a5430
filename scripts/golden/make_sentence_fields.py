"""Golden data for the fields of directories of sentence-transformers: what its classes save and read.

    python="$(scripts/python_env.sh)"
    python3 -m pip --python "$python" install --target "$TMPDIR/packages" --no-deps sentence-transformers==6.2.0
    PYTHONPATH="$TMPDIR/packages" "$python" scripts/golden/make_sentence_fields.py   # writes sentence_fields.json
    PYTHONPATH="$TMPDIR/packages" "$python" scripts/golden/make_sentence_fields.py --check

For each module, by the name of its class, the keys of its file and the arguments that it is made with from them; for
`modules.json` and `config_sentence_transformers.json` the keys that the models write or look up. The source is parsed,
not imported, so that no other package is needed.
"""

import ast
import json
from importlib.metadata import files
from pathlib import Path

import text_golden

PINNED = {"sentence-transformers": "6.2.0"}
OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/sentence_fields.json"
MODEL_FILE = "config_sentence_transformers.json"
# Arguments that state where files are, which no file has.
PLACES = {"self", "path", "model_name_or_path"}
# What older versions wrote into the transformer's file.
OLDER = {"Transformer": ["cache_dir", "config_args", "model_args", "tokenizer_args", "trust_remote_code"],
         "Pooling": ["pooling_mode_cls_token", "pooling_mode_lasttoken", "pooling_mode_max_tokens",
                     "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_mean_tokens",
                     "pooling_mode_weightedmean_tokens"]}


def sources():
    """The parsed files of the package."""
    found = [entry for entry in files("sentence-transformers") if entry.suffix == ".py"]
    for entry in sorted(found, key=str):
        yield entry, ast.parse(Path(entry.locate()).read_text(encoding="utf-8"))


def texts(node):
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def of_module(found):
    """Keys of a module's file: declared, renamed, and the arguments of its initializer."""
    names = set()
    for part in found.body:
        target = getattr(part, "target", None) or next(iter(getattr(part, "targets", [])), None)
        if isinstance(target, ast.Name) and target.id == "config_keys":
            names |= texts(part.value)
        if isinstance(target, ast.Name) and target.id == "config_key_renames":
            names |= texts(part.value)
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            arguments = part.args.posonlyargs + part.args.args + part.args.kwonlyargs
            names |= {argument.arg for argument in arguments} - PLACES
    return names


def looked_up(function):
    """Keys of the dictionaries in a function, and those that it looks up in `model_config`."""
    names = set()
    for part in ast.walk(function):
        if isinstance(part, ast.Dict):
            names |= {key.value for key in part.keys if isinstance(key, ast.Constant)}
        if isinstance(part, ast.Call) and ast.unparse(part.func) == "model_config.get":
            names.add(part.args[0].value)
        if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant) \
                and ast.unparse(part.value) in ("config", "model_config", "module_config"):
            names.add(part.slice.value)
    return names


def fields():
    found = {"modules.json": set(), MODEL_FILE: set()}
    for entry, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and "modules" in entry.parts:
                own = of_module(node)
                if own and any("config_keys" in ast.unparse(part) for part in node.body):
                    found.setdefault(node.name, set()).update(own)
            if isinstance(node, ast.FunctionDef) and node.name in ("_get_model_config", "_parse_model_config"):
                found[MODEL_FILE] |= looked_up(node)
            if isinstance(node, ast.FunctionDef) and node.name == "save" and entry.parts[-2:] == ("base", "model.py"):
                found["modules.json"] |= looked_up(node)
    # The versions are values of `__version__`, whatever packages they are of.
    found[MODEL_FILE] -= {"sentence_transformers", "transformers", "pytorch"}
    for owner, names in OLDER.items():
        found[owner].update(names)
    return {owner: sorted(names) for owner, names in sorted(found.items())}


if __name__ == "__main__":
    text_golden.main(__doc__, PINNED, OUT, lambda: json.dumps(fields(), indent=0) + "\n")
