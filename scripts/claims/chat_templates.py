"""Real chat templates with many conversations: what transformers renders, beside what this program does.

    chat_templates.py write DIRECTORY REQUESTS EXPECTED     renders with transformers, and writes the requests
    chat_templates.py compare EXPECTED RESULTS              prints each difference on stderr, and the figure

DIRECTORY holds packages, somewhere in which are templates, NAME.jinja each. Each is rendered with 30 conversations and
the options below.
Called by chat-templates.sh.
"""

import json
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

# What strftime_now states, in seconds since 1970.
NOW = 1_735_689_599
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather of a \"place\" <now> & here",
    "parameters": {"type": "object", "required": ["place"], "properties": {
        "place": {"type": "string", "description": "Name, such as Köln"}, "days": {"type": "integer", "default": 1},
        "items": {"type": "array", "items": {"type": "string"}}, "unit": {"type": "string", "enum": ["C", "F"]}}}}}
PLAIN = {"type": "function", "function": {"name": "now", "description": "The time",
                                          "parameters": {"type": "object", "properties": {}}}}
DEEP = {"type": "function", "function": {"name": "book", "description": "Books\na room.", "parameters": {
    "type": "object", "properties": {
        "guest": {"type": "object", "properties": {"name": {"type": ["string", "null"]}, "age": {"type": "number"}},
                  "required": ["name"]},
        "keys": {"anyOf": [{"type": "string"}, {"type": "integer"}], "nullable": True},
        "values": {"type": "boolean", "default": False}}}, "return": {"type": "string"}}}
TOOLS = [None, [WEATHER], [PLAIN, DEEP, WEATHER]]
DOCUMENTS = [{"title": "A book", "text": "It was <cold>."}, {"title": "Another", "text": "é\n2"}]


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def tool(text, **more):
    return {"role": "tool", "content": text, **more}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


FLOATS = {"place": "Köln", "days": 2, "x": [1e-05, 1e22, 0.1, 2.0, -0.0, 1e16, 123456.789, 5e-324], "y": {}, "z": None,
          "w": [True, False, None], "big": 18446744073709551615, "n": {"a": {"b": ["c", 1.5]}}, "items": "own", "e": ""}
ASK = [user("Rain?"), assistant(None, tool_calls=[call("weather", {"place": "Köln", "days": 2})]),
       tool("{\"rain\": 1}")]

CONVERSATIONS = [
    [user("Who wrote this?")],
    [user("  Hello,\n\nthere  ")],
    [system("Be brief."), user("Hi")],
    [system(" Be kind.\n"), user("one"), assistant("two"), user("three")],
    [user("one"), assistant("two")],
    [user("one"), assistant("two"), user("three"), assistant(" four \n")],
    [user("中文 é 😀 <b>&'\"</b> {{ x }} {% y %}")],
    [user("")],
    [user("x"), assistant("")],
    [assistant("first"), user("second")],
    [user("a"), user("b")],
    [system("s")],
    [system("s"), system("t"), user("u")],
    [{"role": "developer", "content": "d"}, user("u")],
    [user(f"message {n}") if n % 2 == 0 else assistant(f"answer {n}") for n in range(9)],
    [user("q"), assistant("<think>\nhm\n</think>\n\ntwo"), user("then"), assistant("<think>x</think>y")],
    [user("q"), assistant("a", reasoning_content="because\n"), user("then")],
    [user("q"), assistant("a", reasoning="because"), user("q2"), assistant("b", thinking="so")],
    [user("q"), assistant("a", reasoning_content=None, tool_calls=None, name=None)],
    ASK,
    [*ASK, assistant("It rains."), user("Thanks"), assistant("Yes.")],
    [system("s"), user("q"), assistant("I look.", tool_calls=[call("weather", FLOATS, id="abcdefghi")]),
     tool("ok", name="weather", tool_call_id="abcdefghi"), user("and?")],
    [user("q"), assistant(None, reasoning_content="think", tool_calls=[call("now", {}), call("weather", FLOATS)]),
     tool("12:00"), tool("rain"), assistant("done", reasoning_content="more")],
    [user("q"), assistant("", tool_calls=[call("weather", "{\"place\": \"x\"}")]), tool("y")],
    [user("q"), assistant("t", tool_calls=[]), user("r")],
    [user(parts("part one", " part two "))],
    [system(parts("s")), user(parts("u")), assistant(parts("a", "b")), user("x")],
    [user([{"type": "image"}, {"type": "text", "text": "what is this?"}]), assistant("a cat")],
    [user("q"), assistant(None)],
    [{"role": "critic", "content": "no such role"}],
]
OPTIONS = [
    {}, {"add_generation_prompt": True}, {"continue_final_message": True},
    {"add_generation_prompt": True, "enable_thinking": False}, {"add_generation_prompt": True, "enable_thinking": True},
    {"add_generation_prompt": True, "tools": 1}, {"tools": 2},
    {"add_generation_prompt": True, "tools": 2, "documents": True},
]


def cases():
    """Each conversation with each of the options: its number, the options."""
    for number in range(len(CONVERSATIONS)):
        for option in OPTIONS:
            yield number, option


def renderer():
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import chat_template_utils

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(NOW, timezone.utc).replace(tzinfo=tz)

    chat_template_utils.datetime = Clock
    golden = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/chat/tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(golden), **TOKENS)


def write(directory, requests, expected):
    tokenizer = renderer()
    with open(requests, "w", encoding="utf-8") as asked, open(expected, "w", encoding="utf-8") as known:
        for path in sorted(Path(directory).rglob("*.jinja")):
            template = path.read_bytes().decode("utf-8")
            for number, option in cases():
                more = {"enable_thinking": option["enable_thinking"]} if "enable_thinking" in option else {}
                if option.get("documents"):
                    more["documents"] = DOCUMENTS
                tools = TOOLS[option.get("tools", 0)]
                continues = option.get("continue_final_message", False)
                asks = option.get("add_generation_prompt", False)
                request = {"template": str(path), "messages": CONVERSATIONS[number], "tools": tools, "more": more,
                           "add_generation_prompt": asks, "continue_final_message": continues,
                           "special_tokens": TOKENS, "now": NOW}
                asked.write(json.dumps(request) + "\n")
                try:
                    text = tokenizer.apply_chat_template(
                        CONVERSATIONS[number], tools=tools, chat_template=template, tokenize=False,
                        add_generation_prompt=asks, continue_final_message=continues, **more)
                    found = {"text": text, "ids": tokenizer(text, add_special_tokens=False)["input_ids"]}
                except Exception as error:  # noqa: BLE001, whatever Python raises is a refusal
                    found = {"refused": f"{type(error).__name__}: {error}"[:300]}
                name = f"{path.relative_to(directory).parts[0]}/{path.stem}"
                found |= {"name": name, "conversation": number, "options": option}
                known.write(json.dumps(found) + "\n")


def compare(expected, results):
    """A text has to be equal. What transformers refuses may be refused or not; what only this program refuses is
    counted by its reason, and is a difference too."""
    count, names, differ = Counter(), set(), Counter()
    with open(expected, encoding="utf-8") as known, open(results, encoding="utf-8") as found:
        for want, got in zip(map(json.loads, known), map(json.loads, found), strict=True):
            names.add(want["name"])
            count["all"] += 1
            place = f"{want['name']}, conversation {want['conversation']}, {want['options']}"
            if "refused" in want:
                count["refused" if "error" in got else "rendered here alone"] += 1
                if "error" not in got:
                    print(f"{place}: rendered, transformers: {want['refused']}", file=sys.stderr)
            elif got.get("text") != want["text"]:
                differ[want["name"]] += 1
                print(f"{place}: {got}\n    transformers: {want['text']!r}", file=sys.stderr)
            elif got["ids"] != want["ids"]:
                count["ids"] += 1
                print(f"{place}: other ids", file=sys.stderr)
            else:
                count["equal"] += 1
    print(dict(count), dict(differ), file=sys.stderr)
    same = count["equal"] + count["refused"]
    print(f"{len(names)}_templates,{same}/{count['all']}")
    return same == count["all"] and len(names) >= 100


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", directory, requests, expected]:
            write(directory, requests, expected)
        case ["compare", expected, results]:
            sys.exit(0 if compare(expected, results) else 1)
        case _:
            sys.exit(__doc__)
