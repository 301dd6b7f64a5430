"""The claims of texts of a form from `serve`: see structured.sh.

    python structured.py SERVE_PROGRAM DIR TEXTS

DIR gets the model directories; TEXTS is the number for each schema. Prints texts of their schema/all, texts that
match/all, checks that hold/all, and the median time of a token with a schema in units of one without. Needs the
packages of serve_env.sh on PYTHONPATH; runs in the environment of python_env.sh.
"""

import http.client
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OPENAI_API_KEY", "none")

from serve import Checks, Server, post

NAME = "tiny"
# Of the form of Hermes: calls between marks.
TEMPLATE = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Write calls as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# Of the form of Llama 3: a call is the message.
LLAMA3 = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Write a call as {"name": ..., "parameters": ...}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.tool_calls %}{% set call = message.tool_calls[0].function %}<|python_tag|>{"name": "{{ call.name }}", {#-
#} "parameters": {{ call.arguments | tojson }}}{% else %}{{ message.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# The templates, and the tokens of their marks.
FORMS = {
    "hermes": (TEMPLATE, [("<tool_call>", False), ("</tool_call>", False)]),
    "llama3": (LLAMA3, [("<|python_tag|>", True)]),
}

TEXT = {"type": "string", "maxLength": 12}
SCHEMAS = [
    {"type": "object", "required": ["name", "age"], "additionalProperties": False, "properties": {
        "name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "email": {"type": "string", "format": "email", "maxLength": 30}}},
    {"type": "array", "minItems": 1, "maxItems": 5, "items": {"enum": ["red", "green", 3, None, {"a": [1.5]}]}},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {
        "type": "object", "required": ["label", "children"], "additionalProperties": False, "properties": {
            "label": {"type": "string", "maxLength": 3},
            "children": {"type": "array", "maxItems": 2, "items": {"anyOf": [
                {"type": "null"}, {"type": "boolean"}, {"type": "null"}, {"$ref": "#/$defs/tree"}]}}}}}},
    {"type": "object", "required": ["at", "id"], "additionalProperties": False, "properties": {
        "at": {"type": "string", "format": "date-time"}, "id": {"type": "string", "format": "uuid"}}},
    {"type": "object", "required": ["x"], "properties": {
        "x": {"type": "number", "exclusiveMinimum": -2.5, "maximum": 17.125},
        "y": {"type": "integer", "multipleOf": 12, "minimum": -1000, "maximum": 1000}}},
    {"type": "string", "pattern": "^[A-Z]{2}-\\d{3,5}$"},
    {"type": "string", "pattern": "[aeiou][^a-z\\s]", "minLength": 4, "maxLength": 9},
    {"oneOf": [
        {"type": "object", "required": ["kind", "r"], "additionalProperties": False, "properties": {
            "kind": {"const": "circle"}, "r": {"type": "number", "minimum": 0, "maximum": 9}}},
        {"type": "object", "required": ["kind", "w"], "additionalProperties": False, "properties": {
            "kind": {"const": "square"}, "w": {"type": "number", "minimum": 0, "maximum": 9}}}]},
    {"type": "array", "prefixItems": [TEXT, {"type": "boolean"}], "minItems": 2, "maxItems": 3,
     "items": {"type": ["integer", "null"], "minimum": 1, "maximum": 9}},
    {"type": "object", "properties": {f"p{n}": {"type": "string", "maxLength": 2} for n in range(12)},
     "additionalProperties": False},
]
PATTERNS = [r"[a-z]{3,8}@[a-z]{2,6}\.(com|org|net)", r"(\d{1,3}\.){3}\d{1,3}", r"[^\W\d_]{1,5}( [A-Z]\w{0,4}){2}",
            r"(?:yes|no|maybe)(?:, (?:yes|no|maybe)){0,3}", r"[α-ωぁ-ん]{2,6}!?"]
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "strict": True,
     "parameters": {"type": "object", "required": ["city", "unit"], "additionalProperties": False, "properties": {
         "city": {"type": "string", "maxLength": 10}, "unit": {"enum": ["celsius", "fahrenheit"]}}}}},
    {"type": "function", "function": {"name": "get_time", "strict": True, "parameters": {
        "type": "object", "properties": {}, "required": [], "additionalProperties": False}}},
]


def make_model(directory, form):
    """A Llama with random weights, a byte-level vocabulary and a chat template with tools of a form."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([json.dumps(SCHEMAS, indent=1), json.dumps(TOOLS), TEMPLATE], trainer)
    template, marks = FORMS[form]
    tokenizer.add_tokens([AddedToken(mark, special=special) for mark, special in marks])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = template
    torch.manual_seed(11)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=4096, initializer_range=0.3, bos_token_id=0, eos_token_id=fast.eos_token_id))
    model.save_pretrained(directory)
    fast.save_pretrained(directory)


def schemas(server, texts):
    """Texts that are of their schema, and all; a text that its number of tokens ended is not."""
    from jsonschema import Draft202012Validator, FormatChecker

    # The package checks this format with another one, and else not at all.
    if "date-time" not in FormatChecker.checkers:
        sys.exit("jsonschema does not check date-time: install rfc3339-validator")
    held = 0
    for schema in SCHEMAS:
        validator = Draft202012Validator(schema, format_checker=FormatChecker())
        for first in range(0, texts, 10):
            count = min(10, texts - first)
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            body = {"messages": [{"role": "user", "content": "A value"}], "response_format": form, "n": count,
                    "temperature": 1.0, "seed": first, "max_tokens": 2500}
            status, found = post(server, "/v1/chat/completions", body)
            if status != 200:
                sys.exit(f"{status} {found} for {schema}")
            for choice in found["choices"]:
                text = choice["message"]["content"]
                try:
                    faults = [error.message for error in validator.iter_errors(json.loads(text))]
                except ValueError as error:
                    faults = [f"{error}: {text[:300]!r}, {choice['finish_reason']}"]
                held += not faults
                for fault in faults:
                    print(f"{schema}: {fault}", file=sys.stderr)
    return held, texts * len(SCHEMAS)


def patterns(server, texts=20):
    held = 0
    for pattern in PATTERNS:
        body = {"prompt": "A text", "guided_regex": pattern, "n": texts, "temperature": 1.0, "seed": 5,
                "max_tokens": 400}
        status, found = post(server, "/v1/completions", body)
        for choice in found["choices"] if status == 200 else []:
            matches = re.fullmatch(pattern, choice["text"]) is not None
            held += matches
            if not matches:
                print(f"{pattern}: {choice}", file=sys.stderr)
        if status != 200:
            print(status, found, file=sys.stderr)
    return held, texts * len(PATTERNS)


def called(message):
    """Function and arguments of each call, the arguments checked."""
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    for name, arguments in calls:
        value = json.loads(arguments)
        right = set(value) == {"city", "unit"} if name == "get_weather" else name == "get_time" and value == {}
        if not right:
            raise ValueError(f"{name} {arguments}")
    return calls


def clients(check, server):
    """openai's client: tools, values of models, the model by name, and a body in chunks."""
    from openai import NotFoundError, OpenAI
    from pydantic import BaseModel

    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    model = client.models.retrieve(NAME)
    check("the model is there by its name", model.id == NAME and abs(time.time() - model.created) < 86_400)
    try:
        client.models.retrieve("a/b")
        check("another model is not", False)
    except NotFoundError:
        check("another model is not", True)
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    settings = dict(model=NAME, messages=messages, tools=TOOLS, temperature=1.0, max_tokens=1500)
    for choice in ["required", {"type": "function", "function": {"name": "get_weather"}}]:
        for seed in range(5):
            whole = client.chat.completions.create(**settings, tool_choice=choice, seed=seed).choices[0]
            calls = called(whole.message)
            named = choice == "required" or [name for name, _ in calls] == ["get_weather"]
            check(f"calls are made: {calls}", whole.finish_reason == "tool_calls" and calls and named)
            with client.chat.completions.stream(**settings, tool_choice=choice, seed=seed) as stream:
                final = stream.get_final_completion().choices[0]
            same = called(final.message) == calls and final.message.content == whole.message.content
            check("the stream has the same", same and final.finish_reason == "tool_calls")
    whole = client.chat.completions.create(**settings, tool_choice="required", seed=1, parallel_tool_calls=False)
    check("one call, if only one is allowed", len(called(whole.choices[0].message)) == 1)
    message = whole.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in message.tool_calls]
    after = client.chat.completions.create(model=NAME, tools=TOOLS, max_tokens=5,
                                           messages=[*messages, message.model_dump(), *results])
    check("the conversation goes on after a call", after.usage.prompt_tokens > whole.usage.prompt_tokens)
    for seed in range(5):
        auto = client.chat.completions.create(**{**settings, "max_tokens": 200}, seed=seed).choices[0]
        if auto.finish_reason != "length":
            called(auto.message)
        check(f"by choice: {auto.finish_reason}", auto.finish_reason in ("stop", "tool_calls", "length"))

    class Step(BaseModel):
        rank: int
        note: bool | None

    class Plan(BaseModel):
        steps: list[Step]
        done: bool

    parsed = []
    for seed in range(5):
        answer = client.chat.completions.parse(model=NAME, messages=messages, response_format=Plan, temperature=1.0,
                                               seed=seed, max_tokens=3000)
        parsed.append(answer.choices[0].message.parsed)
    check(f"pydantic's models are read: {parsed[0]}", all(isinstance(plan, Plan) for plan in parsed))

    def chunks():
        body = json.dumps({"model": NAME, "prompt": "A", "max_tokens": 2}).encode()
        for at in range(0, len(body), 7):
            yield body[at:at + 7]

    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    headers = {"Transfer-Encoding": "chunked", "Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", chunks(), headers, encode_chunked=True)
    answer = json.load(connection.getresponse())
    check("a body in chunks is read", answer["usage"]["completion_tokens"] == 2)


def time_of_token(server, form, tokens=300):
    """Seconds of a token; the first request fills the masks that are remembered."""
    body = {"prompt": "A text", "max_tokens": tokens, "temperature": 1.0, "seed": 1, **form}
    post(server, "/v1/completions", body)
    began = time.monotonic()
    _, found = post(server, "/v1/completions", body)
    return (time.monotonic() - began) / found["usage"]["completion_tokens"]


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    program, texts = sys.argv[1], int(sys.argv[3])
    check = Checks()
    for form in FORMS:
        make_model(Path(sys.argv[2]) / form / NAME, form)
    with Server(program, Path(sys.argv[2]) / "llama3" / NAME) as server:
        clients(check, server)
    with Server(program, Path(sys.argv[2]) / "hermes" / NAME) as server:
        of_schemas, of_patterns = schemas(server, texts), patterns(server)
        clients(check, server)
        form = {"guided_json": {"type": "array", "minItems": 400, "items": {"type": "string", "maxLength": 20}}}
        ratios = [time_of_token(server, form) / time_of_token(server, {"ignore_eos": True}) for _ in range(5)]
        check("the server stops with 0", server.stop() == 0)
    print(f"{of_schemas[0]}/{of_schemas[1]},{of_patterns[0]}/{of_patterns[1]},{check.held}/{check.all},"
          f"{statistics.median(ratios):.2f}x")


if __name__ == "__main__":
    main()
