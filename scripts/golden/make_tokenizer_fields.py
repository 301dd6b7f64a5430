"""Golden data for the fields of tokenizer_config.json: what transformers' tokenizers take, read or write.

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_tokenizer_fields.py            # writes tokenizer_config_fields.json
    "$python" scripts/golden/make_tokenizer_fields.py --check    # compares with the committed file

The arguments of every tokenizer class that AutoTokenizer can find, and the keys that the base classes look up.
"""

import inspect
import json
import re
from pathlib import Path

import text_golden
from transformers import tokenization_python, tokenization_utils_base, tokenization_utils_tokenizers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

PINNED = {"transformers": "5.23.0"}
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


def fields():
    names = set(tokenization_utils_base.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
    for found in classes():
        names.update(arguments_of(found))
    looked_up = (r'(?:kwargs|config|init_kwargs|tokenizer_config)\.(?:get|pop|setdefault)\(\s*"(\w+)"',
                 r'(?:init_kwargs|tokenizer_config|kwargs)\["(\w+)"\]')
    for module in (tokenization_utils_base, tokenization_utils_tokenizers, tokenization_python):
        source = inspect.getsource(module)
        for pattern in looked_up:
            names.update(re.findall(pattern, source))
    return sorted(names)


if __name__ == "__main__":
    text_golden.main(__doc__, PINNED, OUT, lambda: json.dumps(fields(), indent=0) + "\n")
