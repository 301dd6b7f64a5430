"""The claims of `serve`: see serve.sh.

    python serve.py SERVE_PROGRAM DIR PROSE SECONDS

DIR has the model directory `smollm2`. Prints checks that hold/all, the largest difference of a log-likelihood from
transformers' in float64, relative, the same of transformers in float32, responses under load, and the ratio of
throughputs. Needs the packages of serve_env.sh on PYTHONPATH; runs in the environment of python_env.sh.
"""

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("OPENAI_API_KEY", "none")

CLIENTS = 64
BROKEN = 100
NAME = "smollm2"


class Checks:
    """Checks by name, with those that do not hold on stderr."""

    def __init__(self):
        self.held = 0
        self.all = 0

    def __call__(self, name, holds):
        self.all += 1
        self.held += bool(holds)
        print(f"{'ok  ' if holds else 'FAIL'} {name}", file=sys.stderr)


class Server:
    """The program on a free port."""

    def __init__(self, program, directory, *arguments):
        command = [program, str(directory), "--port", "0", "--device", "cpu", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"http://[^/]*:(\d+)/", line)
        if found is None:
            self.process.kill()
            sys.exit(f"{program} named no address but {line!r}")
        self.port = int(found.group(1))
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()

    def metric(self, name):
        text = urllib.request.urlopen(f"{self.url}/metrics", timeout=60).read().decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        if found is None:
            raise KeyError(f"/metrics has no {name}")
        return float(found.group(1))

    def resident(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=120)


def post(server, path, body, timeout=600):
    """Status and object of a response."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def clients(check, server):
    """openai's client: a chat and completions, whole and streamed."""
    from openai import BadRequestError, NotFoundError, OpenAI

    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    check("the client lists the model", [model.id for model in client.models.list()] == [NAME])
    check("and finds it by its name", client.models.retrieve(NAME).id == NAME)
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    settings = dict(model=NAME, messages=messages, max_tokens=40, temperature=0)
    whole = client.chat.completions.create(**settings)
    text = whole.choices[0].message.content
    check("a chat has an answer", len(text) > 10 and whole.usage.completion_tokens > 3)
    pieces, reasons, usage = [], [], None
    stream = client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True})
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            reasons.append(choice.finish_reason)
    check("a streamed chat is the whole", "".join(pieces) == text and len([p for p in pieces if p]) > 3)
    check("it ends with a reason and usage", [r for r in reasons if r] == [whole.choices[0].finish_reason]
          and usage == whole.usage)
    completion = dict(model=NAME, prompt="The sea was calm, and", max_tokens=20, seed=7, temperature=0.8, n=2)
    whole = client.completions.create(**completion)
    texts = ["", ""]
    for chunk in client.completions.create(**completion, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    check("streamed completions are the whole", texts == [choice.text for choice in whole.choices])
    check("two samples differ", texts[0] != texts[1])
    for error, settings in [(NotFoundError, dict(model="other", prompt="a")),
                            (BadRequestError, dict(model=NAME, prompt="a", suffix="b"))]:
        try:
            client.completions.create(**settings)
            check(f"{error.__name__} is raised", False)
        except error:
            check(f"{error.__name__} is raised", True)


def task(directory, prose):
    """A task of multiple choice: how a sentence of a novel goes on, beside the ends of three others."""
    sentences = re.split(r"(?<=[.!?])\s+", Path(prose).read_text().replace("\n", " "))
    sentences = [s for s in sentences if 60 < len(s) < 200 and s.isascii()][100:260]
    rows = []
    for index in range(0, 160, 4):
        four = [s.split() for s in sentences[index:index + 4]]
        cut = [len(words) // 2 for words in four]
        choices = [" ".join(words[at:]) for words, at in zip(four, cut)]
        rows.append({"query": " ".join(four[0][:cut[0]]), "choices": choices, "gold": 0})
    data = directory / "ends.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "task": "ends", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{query}}",
        "doc_to_target": "gold", "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True},
                        {"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True}],
    }


def evaluations(check, server, directory, prose):
    """lm-eval through the server and through transformers; the largest relative differences of a log-likelihood from
    transformers' in float64, of the server and of transformers in float32."""
    import lm_eval

    def run(model, arguments):
        found = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=[task(directory, prose)],
                                        batch_size=4, log_samples=True, bootstrap_iters=0)
        pairs = [pair for sample in found["samples"]["ends"] for pair in sample["filtered_resps"]]
        scores = {name: value for name, value in found["results"]["ends"].items() if name.startswith("acc")
                  and "stderr" not in name}
        return scores, [float(pair[0]) for pair in pairs], [str(pair[1]) for pair in pairs]

    model = str(directory / "smollm2")
    ours = run("local-completions", {"model": NAME, "base_url": f"{server.url}/v1/completions", "tokenizer": model,
                                     "tokenizer_backend": "huggingface", "num_concurrent": 4, "max_length": 2048})
    theirs = run("hf", {"pretrained": model, "dtype": "float32", "device": "cpu"})
    exact = run("hf", {"pretrained": model, "dtype": "float64", "device": "cpu"})
    check(f"lm-eval's scores are equal: {ours[0]}", ours[0] == theirs[0])
    check("so is which continuations are greedy", ours[2] == theirs[2] and len(ours[2]) == len(ours[1]) > 0)

    def largest(answers, of):
        return max(abs(a - b) / of(b) for a, b in zip(answers, exact[1], strict=True))

    absolute = [largest(answers[1], lambda _: 1.0) for answers in (ours, theirs)]
    print(f"log-likelihoods of {min(exact[1]):.1f} to {max(exact[1]):.1f}: {absolute[0]:.1e} from float64, "
          f"transformers in float32 {absolute[1]:.1e}", file=sys.stderr)
    check("log-likelihoods are no farther from float64 than transformers' in float32", absolute[0] <= absolute[1])
    return largest(ours[1], abs), largest(theirs[1], abs)


def load(check, server, seconds):
    """CLIENTS clients, of whose requests one in BROKEN is broken off; responses."""
    results, lock, until = [], threading.Lock(), time.monotonic() + seconds
    memory = []

    def broken(body):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            data = json.dumps({**body, "stream": True}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
            connection.sendall(head.encode() + data)
            connection.recv(100)

    def client(number):
        turn = 0
        while time.monotonic() < until:
            turn += 1
            words = ["sea", "ship", "whale", "night", "captain"]
            prompt = " ".join(words[(number * 7 + turn + k) % 5] for k in range(1 + (number + turn) % 30))
            body = {"prompt": f"The {prompt}", "max_tokens": 4 + (number + turn) % 8, "temperature": 0}
            try:
                if (number + turn * CLIENTS) % BROKEN == 7:
                    broken({**body, "max_tokens": 200})
                    outcome = "broken"
                else:
                    status, found = post(server, "/v1/completions", body)
                    complete = status == 200 and found["usage"]["completion_tokens"] >= 1
                    outcome = "whole" if complete else f"lost {status}"
            except Exception as error:
                outcome = f"lost {error!r}"
            with lock:
                results.append(outcome)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.5)
        memory.append(server.resident())
    for thread in threads:
        thread.join()
    lost = [outcome for outcome in results if outcome.startswith("lost")]
    print(*sorted(set(lost))[:5], sep="\n", end="\n" if lost else "", file=sys.stderr)
    check(f"no response of {len(results)} is lost ({results.count('broken')} broken off)", not lost)
    check("some were broken off", results.count("broken") > 0)
    begun = time.monotonic()
    while server.metric("serve_running_sequences") > 0 and time.monotonic() - begun < 60:
        time.sleep(0.1)
    left = [server.metric(f"serve_{name}") for name in ["running_sequences", "cached_tokens", "queue_length"]]
    check(f"nothing is left: {left}", left == [0, 0, 0])
    third = max(len(memory) // 3, 1)
    early, late = statistics.median(memory[third:2 * third] or memory), statistics.median(memory[-third:])
    check(f"memory is flat: {early / 2**20:.0f} and {late / 2**20:.0f} MiB", late < 1.1 * early + (16 << 20))
    return results.count("whole")


def throughput(server, requests, tokens=64):
    """Tokens a second of this number of requests at a time."""
    bodies = [{"prompt": f"Chapter {number}. The ship", "max_tokens": tokens, "temperature": 1.0, "seed": number}
              for number in range(requests)]
    counts = [0] * requests

    def ask(number):
        counts[number] = post(server, "/v1/completions", bodies[number])[1]["usage"]["completion_tokens"]

    began = time.monotonic()
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - began)


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    program, directory, prose, seconds = sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    check = Checks()
    with Server(program, directory / "smollm2") as server:
        clients(check, server)
        # Alternately, so that both have the same load of the machine; the medians of three.
        pairs = [(throughput(server, 1), throughput(server, 16)) for _ in range(3)]
        one, many = (statistics.median(side) for side in zip(*pairs))
        print(f"{one:.1f} and {many:.1f} tokens/s", file=sys.stderr)
        responses = load(check, server, seconds)
        ours, theirs = evaluations(check, server, directory, prose)
        check("the server stops with 0", server.stop() == 0)
    print(f"{check.held}/{check.all},{ours:.1e},{theirs:.1e},{responses},{many / one:.1f}x")


if __name__ == "__main__":
    main()
