"""Golden data for the fields of tokenizer_config.json: what transformers' tokenizers take, read or write.

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_tokenizer_fields.py            # writes tokenizer_config_fields.json
    "$python" scripts/golden/make_tokenizer_fields.py --check    # compares with the committed file

The arguments of every tokenizer class that AutoTokenizer can find, and the keys that the base classes look up; of the
classes whose packages are missing the arguments are taken from the source.
"""

import ast
import inspect
import json
import re
from importlib.metadata import files
from pathlib import Path

import text_golden
from transformers import tokenization_python, tokenization_utils_base, tokenization_utils_tokenizers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

PINNED = {"transformers": "5.23.0"}
# The classes that tokenizers are made of.
BASES = {"MistralCommonBackend", "PreTrainedTokenizer", "PreTrainedTokenizerBase", "PreTrainedTokenizerFast",
         "PythonBackend", "SentencePieceBackend", "TokenizersBackend"}
OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/tokenizer_config_fields.json"


def classes():
    for names in TOKENIZER_MAPPING_NAMES.values():
        for name in names if isinstance(names, (list, tuple)) else [names]:
            try:
                found = tokenizer_class_from_name(name)
            except Exception:  # noqa: BLE001, a class whose packages are missing
                continue
            if found is not None:
                yield found


def arguments_of(found):
    for base in found.__mro__:
        if "__init__" in base.__dict__ and base.__module__.startswith("transformers"):
            for parameter in list(inspect.signature(base.__init__).parameters.values())[1:]:
                if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                    yield parameter.name


def arguments_in_source():
    """The arguments of the initializers of all tokenizers in the package."""
    arguments, bases = {}, {}
    for entry in files("transformers"):
        if entry.suffix != ".py" or not entry.name.startswith("tokenization_"):
            continue
        for found in ast.walk(ast.parse(Path(entry.locate()).read_text(encoding="utf-8"))):
            if not isinstance(found, ast.ClassDef):
                continue
            bases[found.name] = [ast.unparse(base).split(".")[-1] for base in found.bases]
            for part in found.body:
                if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                    own = part.args.posonlyargs + part.args.args + part.args.kwonlyargs
                    arguments[found.name] = [argument.arg for argument in own if argument.arg != "self"]

    def is_tokenizer(name, below=()):
        above = [base for base in bases.get(name, []) if base not in below]
        return name in BASES or any(is_tokenizer(base, (*below, name)) for base in above)

    for name, own in arguments.items():
        if is_tokenizer(name):
            yield from own


def fields():
    names = set(tokenization_utils_base.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
    for found in classes():
        names.update(arguments_of(found))
    names.update(arguments_in_source())
    looked_up = (r'(?:kwargs|config|init_kwargs|tokenizer_config)\.(?:get|pop|setdefault)\(\s*"(\w+)"',
                 r'(?:init_kwargs|tokenizer_config|kwargs)\["(\w+)"\]')
    for module in (tokenization_utils_base, tokenization_utils_tokenizers, tokenization_python):
        source = inspect.getsource(module)
        for pattern in looked_up:
            names.update(re.findall(pattern, source))
    return sorted(names)


if __name__ == "__main__":
    text_golden.main(__doc__, PINNED, OUT, lambda: json.dumps(fields(), indent=0) + "\n")
