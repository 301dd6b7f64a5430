"""Checks of unpack.py, prepare_sentences.py, words.py and the verdicts of claims/*.py.

Run by check_scripts.sh; standard library only.
"""

import contextlib
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "claims")]

import accuracy  # noqa: E402
import allreduce  # noqa: E402
import compare_runs  # noqa: E402
import dead_rank  # noqa: E402
import event_files  # noqa: E402
import kernels_compile  # noqa: E402
import prepare_sentences  # noqa: E402
import repairs  # noqa: E402
import same_digests  # noqa: E402
import size  # noqa: E402
import speed  # noqa: E402
import speed_decode  # noqa: E402
import speed_llama_cpp  # noqa: E402
import speed_offload  # noqa: E402
import speed_peers  # noqa: E402
import unpack  # noqa: E402
import words  # noqa: E402


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def call(main, arguments, stdin=""):
    """Runs a script's main; returns its exit status or message, and what it wrote to stdout."""
    out = io.StringIO()
    with mock.patch.object(sys, "argv", ["script", *map(str, arguments)]), \
            mock.patch("sys.stdin", io.StringIO(stdin)), contextlib.redirect_stdout(out), \
            contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code
    return status, out.getvalue()


class InScratch(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = Path(scratch.name)


class KernelsCompile(unittest.TestCase):
    OUTPUT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas         .     32 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers, 32 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 472 bytes cmem[0]
"""

    def measured(self, **changes):
        numbers = {"registers": 40, "stack": 0, "spill_stores": 0, "spill_loads": 0, "shared": 128, **changes}
        return {("norm", "norm_forward_f32", "sm_80"): numbers}

    def ledger(self, reason="", **changes):
        row = {column: str(number) for column, number in next(iter(self.measured(**changes).values())).items()}
        return {("norm", "norm_forward_f32", "sm_80"): {**row, "reason": reason}}

    def test_the_assemblers_report_is_read_in_both_forms(self):
        none = {"stack": 0, "spill_stores": 0, "spill_loads": 0, "shared": 0}
        self.assertEqual(kernels_compile.kernels_of(self.OUTPUT), {
            "first": {"registers": 80, "stack": 32, "spill_stores": 8, "spill_loads": 12, "shared": 128},
            "second": {**none, "registers": 24},
        })

    def test_what_is_as_the_ledger_says_or_takes_less_is_fine(self):
        self.assertEqual(kernels_compile.findings(self.measured(), self.ledger()), [])
        self.assertEqual(kernels_compile.findings(self.measured(registers=32), self.ledger()), [])

    def test_growth_is_found(self):
        for column in kernels_compile.NUMBERS:
            found = kernels_compile.findings(self.measured(**{column: 200}), self.ledger(reason="known"))
            self.assertEqual(len(found), 1, found)
            self.assertIn(f"{column} rose", found[0])

    def test_a_spill_needs_a_reason(self):
        spills = {"spill_stores": 4, "spill_loads": 4}
        self.assertIn("gives no reason", kernels_compile.findings(self.measured(**spills), self.ledger(**spills))[0])
        self.assertEqual(kernels_compile.findings(self.measured(**spills), self.ledger(reason="why", **spills)), [])

    def test_kernels_that_came_or_went_are_found(self):
        self.assertIn("not in the ledger", kernels_compile.findings(self.measured(), {})[0])
        self.assertIn("the units have not", kernels_compile.findings({}, self.ledger())[0])


class EventFiles(InScratch):
    STEP = {"kind": "step", "batch": "00", "time": {"seconds": 1.0}}

    def metrics(self, *records):
        path = self.dir / "metrics.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"kind":"st')
        return path

    def test_what_a_resume_overtook_is_not_expected(self):
        steps = [{**self.STEP, "step": step, "loss": loss} for step, loss in ((1, 0.5), (2, 0.1), (3, "NaN"))]
        again = {**self.STEP, "step": 2, "loss": 0.25}
        scalars = event_files.expected(self.metrics(*steps, {"kind": "resume", "step": 1}, again))
        self.assertEqual(scalars, {"train/loss": [(1, 0.5), (2, 0.25)], "time/seconds": [(1, 1.0), (2, 1.0)]})

    def test_values_that_differ_or_are_missing_do_not_agree(self):
        nan = float("nan")
        ours = {"a": [(1, 0.5), (2, nan)], "b": [(1, 2.0)]}
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(event_files.agree(ours, {"a": [(1, 0.5), (2, nan)], "b": [(1, 2.0)]}), 3)
            self.assertEqual(event_files.agree(ours, {"a": [(1, 0.25), (3, nan)]}), 0)
            with self.assertRaises(AssertionError):
                event_files.agree(ours, {**ours, "c": [(1, 1.0)]})


class Unpack(InScratch):
    def tar_of(self, *members):
        """A tar.gz; a member is (name, content) or (name, link target, type)."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz") as tar:
            for name, content, *kind in members:
                info = tarfile.TarInfo(name)
                if kind:
                    info.type, info.linkname = kind[0], content
                    tar.addfile(info)
                else:
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        return stream.getvalue()

    def unpack(self, archive, manifest):
        (self.dir / "archive").write_bytes(archive)
        return call(unpack.main, [self.dir / "archive", self.dir / "out"], manifest)[0]

    def test_a_file_of_a_nested_tar_is_copied(self):
        archive = self.tar_of(("inner.tar.gz", self.tar_of(("a/b.txt", b"text"))))
        self.assertEqual(self.unpack(archive, f"{sha256(b'text')} b.txt inner.tar.gz!a/b.txt\n"), 0)
        self.assertEqual((self.dir / "out/b.txt").read_bytes(), b"text")

    def test_a_file_of_a_zip_is_copied(self):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as bundle:
            bundle.writestr("a/b.txt", "text")
        self.assertEqual(self.unpack(stream.getvalue(), f"{sha256(b'text')} b.txt a/b.txt"), 0)

    def test_another_hash_is_refused_and_leaves_no_file(self):
        status = self.unpack(self.tar_of(("b.txt", b"other")), f"{sha256(b'text')} b.txt b.txt")
        self.assertIn("expected SHA-256", str(status))
        self.assertFalse((self.dir / "out/b.txt").exists())

    def test_a_destination_outside_the_directory_is_refused(self):
        for name in ("../b.txt", "/tmp/b.txt", "a/../../b.txt"):
            status = self.unpack(self.tar_of(("b.txt", b"text")), f"{sha256(b'text')} {name} b.txt")
            self.assertIn("leaves the output directory", str(status))
            self.assertFalse((self.dir / "b.txt").exists())

    def test_links_are_refused(self):
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            status = self.unpack(self.tar_of(("b.txt", "/etc/hostname", kind)), f"{sha256(b'')} b.txt b.txt")
            self.assertIn("not an ordinary file", str(status))

    def test_a_missing_member_and_a_broken_archive_are_refused(self):
        self.assertIn("no file 'c.txt'", str(self.unpack(self.tar_of(("b.txt", b"")), f"{sha256(b'')} c.txt c.txt")))
        for archive in (b"", b"no archive", self.tar_of(("b.txt", b"text" * 99))[:60]):
            self.assertIn("archive", str(self.unpack(archive, f"{sha256(b'')} b.txt b.txt")))

    def test_more_than_the_limit_is_not_read(self):
        with mock.patch.object(unpack, "MAX_BYTES", 8):
            status = self.unpack(self.tar_of(("b.txt", b"123456789")), f"{sha256(b'123456789')} b.txt b.txt")
        self.assertIn("more than 8 bytes", str(status))


class Sentences(InScratch):
    def prepare(self, rows, *options):
        (self.dir / "rated.tsv").write_bytes("\r\n".join(rows).encode())
        return call(prepare_sentences.main, [self.dir / "rated.tsv", self.dir / "out", *options])[0]

    def read(self, name):
        return [json.loads(line) for line in (self.dir / "out" / name).read_text(encoding="utf-8").splitlines()]

    def test_sentences_are_cleaned_labelled_and_kept_once(self):
        rows = ["1\t0.5\tCliché &amp; ''wit''  here.", "2\t-3\tDull.", "3\t0.4\tUnclear.", "4\t-2\tDULL!"]
        self.assertEqual(self.prepare(rows, "--heldout", 1), 0)
        records = self.read("train.jsonl") + self.read("heldout.jsonl")
        self.assertCountEqual(records, [{"text": 'Cliché & "wit" here.', "label": "positive"},
                                        {"text": "Dull.", "label": "negative"}])

    def test_the_order_depends_on_the_seed_alone(self):
        rows = [f"{i}\t{(-1) ** i}\tSentence {i}." for i in range(50)]
        self.prepare(rows, "--heldout", 10)
        first = self.read("heldout.jsonl")
        self.prepare(rows[::-1], "--heldout", 10)
        self.assertEqual(self.read("heldout.jsonl"), first)
        self.prepare(rows, "--heldout", 10, "--seed", 1)
        self.assertNotEqual(self.read("heldout.jsonl"), first)

    def test_a_line_of_another_form_is_named(self):
        self.assertIn("rated.tsv:2", str(self.prepare(["1\t1\tGood.", "2\tBad."], "--heldout", 1)))

    def test_holding_out_everything_is_refused(self):
        self.assertIn("--heldout 1", str(self.prepare(["1\t1\tGood."], "--heldout", 1)))


class Verdicts(InScratch):
    def speed(self, claim, torch_values, *our_values):
        """The last line and exit status for given figures of PyTorch's runs and constant ones of ours."""
        keys, values = sorted(speed.bounds(speed.CLAIMS[claim])), iter(torch_values)
        base = {"device": "cpu (2 threads, avx2)", "step_s": 1.0, "tokens_per_s": 1.0, "peak_rss_bytes": 1.0,
                "torch": "0", "gemm_floor_s": 1.0}
        with mock.patch.object(speed, "run_torch", lambda *_: base | dict.fromkeys(keys, next(values))), \
                mock.patch.object(speed, "run_ours", lambda *_: base | dict(zip(keys, our_values))):
            return call(speed.main, [claim, "bench", "--no-compile"])

    def test_the_median_ratio_decides(self):
        calm = [100, 101, 99, 100, 102, 98, 100]
        self.assertEqual(self.speed("speed-bert-base", calm, 120), (0, "speed-bert-base 1.200x,avx2 ok\n"))
        self.assertEqual(self.speed("speed-bert-base", calm, 119), (1, "speed-bert-base 1.190x,avx2 short\n"))
        self.assertEqual(self.speed("rss-bert-base", calm, 65), (0, "rss-bert-base 0.650x,avx2 ok\n"))
        self.assertEqual(self.speed("rss-bert-base", calm, 66), (1, "rss-bert-base 0.660x,avx2 short\n"))

    def test_memory_and_speed_have_a_bound_each(self):
        name, calm = "rss-bert-base-recompute", [100, 101, 99, 100, 102, 98, 100]
        self.assertEqual(self.speed(name, calm, 55, 95), (0, f"{name} memory=0.550x,speed=0.950x,avx2 ok\n"))
        self.assertEqual(self.speed(name, calm, 56, 95), (1, f"{name} memory=0.560x,speed=0.950x,avx2 short\n"))
        self.assertEqual(self.speed(name, calm, 55, 94), (1, f"{name} memory=0.550x,speed=0.940x,avx2 short\n"))

    def test_a_wide_spread_is_noisy_whatever_the_ratio(self):
        wide = [100, 120, 80, 100, 125, 75, 100]
        self.assertEqual(self.speed("speed-minilm", wide, 200)[0], 75)
        self.assertEqual(self.speed("speed-minilm", wide, 10)[0], 75)

    def test_decoding_is_judged_by_speed_only_where_the_words_agree(self):
        def decode(theirs, mine, ids=(1, 2)):
            values = iter(theirs)
            base = {"device": "cpu (2 threads, avx2)", "torch": "0", "peak_rss_bytes": 1.0}
            torch = lambda _directory: base | {"tokens_per_s": next(values), "ids": [1, 2]}  # noqa: E731
            with mock.patch.object(speed_decode, "torch_decode", torch), \
                    mock.patch.object(speed_decode, "ours", lambda *_: base | {"tokens_per_s": mine, "ids": list(ids)}):
                return call(speed_decode.main, ["bench", "directory"])

        self.assertEqual(decode([10] * 7, 15), (0, "speed-decode 1.500x,avx2 ok\n"))
        self.assertEqual(decode([10] * 7, 14.9), (1, "speed-decode 1.490x,avx2 short\n"))
        self.assertEqual(decode([10] * 7, 15, ids=(1, 3))[0], 1)
        self.assertEqual(decode([10, 12, 10, 10, 10, 10, 10], 20)[0], 75)

    def test_llama_cpp_is_held_against_each_dtype_in_both_parts(self):
        text = self.dir / "text"
        text.write_text("text")

        def compared(slow, theirs=(10, 10, 10, 10, 10)):
            """Ours is as fast but for `slow`: a dtype, a key and its value."""
            values = {dtype: iter(theirs) for dtype in speed_llama_cpp.DTYPES}
            base = {"device": "cpu (2 threads, avx2)", "peak_rss_bytes": 1, "ids": [1], "prompt_ids": [2],
                    "prompt_tokens_per_s": 10, "tokens_per_s": 10}

            def llama(path, prompt):
                self.assertEqual(prompt, [2])
                return base | {"llama_cpp_python": "0", "system_info": "", "tokens_per_s": next(values[path.stem])}

            def ours(_bench, _directory, dtype, *_rest):
                return base | ({slow[1]: slow[2]} if dtype == slow[0] else {})

            with mock.patch.object(speed_llama_cpp, "llama_decode", llama), \
                    mock.patch.object(speed_llama_cpp, "ours", ours):
                return call(speed_llama_cpp.main, ["bench", self.dir, text, "--isa", "avx2"])

        with mock.patch.dict("os.environ"):
            self.assertEqual(compared(("bf16", "tokens_per_s", 9)), (
                0, "speed-llama-cpp f32:prompt=1.000x,f32:generation=1.000x,bf16:prompt=1.000x,bf16:generation=0.900x,"
                   "avx2 ok\n"))
            self.assertEqual(compared(("f32", "prompt_tokens_per_s", 8.9)), (
                1, "speed-llama-cpp f32:prompt=0.890x,f32:generation=1.000x,bf16:prompt=1.000x,bf16:generation=1.000x,"
                   "avx2 short\n"))
            self.assertEqual(compared(("f32", "tokens_per_s", 20), (10, 12, 10, 10, 10))[0], 75)

    def test_every_peer_and_model_must_be_slower_and_larger(self):
        def peers(theirs, largest=2.0, mine=25):
            base = {"device": "cpu (2 threads, avx2)", "step_s": 1.0, "peak_rss_bytes": 1.0, "loss_first": 0.7,
                    "loss": 0.6, "library": "peer", "version": "0", "backend": "gemm"}
            values = iter(theirs)
            # The last of the four comparisons is with the largest.
            sizes = iter([2.0] * 9 + [largest] * 3)
            peer = lambda *_: base | {"tokens_per_s": next(values), "peak_rss_bytes": next(sizes)}  # noqa: E731
            with mock.patch.object(speed_peers, "run_peer", peer), \
                    mock.patch.object(speed, "run_ours", lambda *_: base | {"tokens_per_s": mine}):
                return call(speed_peers.main, ["bench", "directory", "--pairs", "3"])

        four = "burn:minilm=2.50x,burn:bert-base=2.50x,candle:minilm=2.50x,candle:bert-base="
        self.assertEqual(peers([10] * 12), (0, f"speed-peers {four}2.50x,avx2 ok\n"))
        self.assertEqual(peers([10] * 9 + [10.1] * 3), (1, f"speed-peers {four}2.48x,avx2 short\n"))
        self.assertEqual(peers([10] * 12, largest=1.0)[0], 1, "as much memory")
        self.assertEqual(peers([10] * 11 + [12])[0], 75)

    def test_an_optimizer_step_is_held_against_both_of_pytorchs(self):
        def offload(default, fused):
            values = iter(fused)
            def adamw(variant):
                return {"step_s": default if variant == "default" else next(values), "torch": "0"}

            with mock.patch.object(speed_offload, "torch_adamw", adamw), \
                    mock.patch.object(speed_offload, "ours", lambda _bench: {"step_s": 0.1}):
                return call(speed_offload.main, ["bench"])

        self.assertEqual(offload(0.16, [0.1] * 7), (0, "speed-offload 1.60x/1.00x ok\n"))
        self.assertEqual(offload(0.14, [0.1] * 7), (1, "speed-offload 1.40x/1.00x short\n"))
        self.assertEqual(offload(0.2, [0.09] * 7), (1, "speed-offload 2.00x/0.90x short\n"))
        self.assertEqual(offload(0.2, [0.1, 0.12, 0.1, 0.1, 0.1, 0.1, 0.1])[0], 75)

    def test_a_lost_rank_is_named_by_the_deadline_and_the_job_ends_soon_after(self):
        def lost(killed, stopped, well=True):
            times = {"SIGKILL": killed, "SIGSTOP": stopped}
            with mock.patch.object(dead_rank, "trial", lambda _kind, how, *_rest: (*times[how.name], well)):
                return call(dead_rank.main, [self.dir, "finetune"])[1]

        self.assertEqual(lost((0.5, 1.2), (30.4, 31.0)), "0.5/1.2s,30.4/31.0s ok\n")
        self.assertEqual(lost((0.5, 5.2), (30.4, 31.0)), "0.5/5.2s,30.4/31.0s short\n")
        self.assertEqual(lost((0.5, 1.2), (31.5, 32.0)), "0.5/1.2s,31.5/32.0s short\n", "named late")
        self.assertEqual(lost((0.5, 1.2), (30.4, 35.5)), "0.5/1.2s,30.4/35.5s short\n", "ended late")
        self.assertEqual(lost((0.5, 1.2), (30.4, 31.0), False), "0.5/1.2s,30.4/31.0s short\n", "one kept silent")

    def test_an_all_reduce_is_held_against_openmpis(self):
        def reduced(seconds, theirs, size=64 << 20):
            figure = json.dumps({"operation": "all_reduce", "bytes": size, "ranks": 2, "median_s": seconds})
            values = iter(theirs * 2)
            said = lambda command: figure if command[0] == "bench" else str(next(values))  # noqa: E731
            with mock.patch.object(allreduce, "output", said):
                return call(allreduce.main, ["bench", "mpi"])

        self.assertEqual(reduced(0.01, [16000.0] * 7), (0, "1.60/1.60 ok\n"))
        self.assertEqual(reduced(0.01, [15900.0] * 7), (0, "1.59/1.59 short\n"))
        self.assertEqual(reduced(0.01, [16000.0] * 6 + [19000.0]), (0, "1.60/1.60 noisy\n"))
        self.assertIn("another figure", str(reduced(0.01, [16000.0] * 7, 4096)[0]))

    def test_the_last_accuracy_of_a_run_is_read(self):
        path = self.dir / "metrics.jsonl"
        path.write_text(
            '{"kind": "eval", "metrics": {"accuracy": 0.5}}\n{"kind": "step", "loss": 0.7}\n'
            '{"kind": "eval", "metrics": {"accuracy": 0.861}}\n{"kind": "end"}\n')
        self.assertEqual(call(accuracy.main, [path]), (0, "86.1\n"))
        path.write_text('{"step": 1}\n')
        self.assertIn("no evaluation has an accuracy", str(call(accuracy.main, [path])[0]))

    def test_runs_are_compared_but_for_the_clock(self):
        for name, seconds, weights in (("a", 1, b"w"), ("b", 2, b"w"), ("c", 1, b"v")):
            run = self.dir / name
            run.mkdir()
            end = {"loss": 0.5, "state": {"weights": "ab", "optimizer": "cd"}, "time": {"seconds": seconds}}
            (run / "metrics.jsonl").write_text(json.dumps(end) + "\n")
            (run / "model.safetensors").write_bytes(weights)
            (run / "recipe.toml").write_text(name)
        compare = lambda other: call(compare_runs.main, [self.dir / "a", self.dir / other])[1]  # noqa: E731
        states = "same last-weights\nsame optimizer-state\n"
        self.assertEqual(compare("b"), "same metrics.jsonl\nsame model.safetensors\n" + states)
        self.assertEqual(compare("c"), "same metrics.jsonl\ndifferent model.safetensors\n" + states)
        (self.dir / "b/metrics.jsonl").write_text('{"loss": 0.6, "state": {"weights": "ab"}, "time": {"seconds": 1}}\n')
        self.assertEqual(compare("b"), "different metrics.jsonl\nsame model.safetensors\n"
                         "same last-weights\ndifferent optimizer-state\n")
        (self.dir / "a/metrics.jsonl").write_text('{"loss": 0.6, "time": {"seconds": 1}}\n')
        (self.dir / "b/metrics.jsonl").write_text('{"loss": 0.6, "time": {"seconds": 2}}\n')
        self.assertIn("different optimizer-state", compare("b"), "none on both sides proves nothing")

class Lists(unittest.TestCase):
    TEXT = (
        "### Other tests\n`cargo test -p c --test d`:\n- `not_this`\n"
        "### The tests of `repairs`\nText.\n\n`cargo test -p a --test b`:\n\n"
        "- `one::two`: a claim\n- `three`: another\n\n"
        "`cargo test -p a --lib`\n- `four`\n## Next\n- `five`\n")

    def test_the_tests_of_repairs_are_read_from_their_section_alone(self):
        expected = [(["-p", "a", "--test", "b"], ["one::two", "three"]), (["-p", "a", "--lib"], ["four"])]
        self.assertEqual(repairs.listed(self.TEXT), expected)

    def test_a_listed_test_that_did_not_run_or_failed_does_not_count(self):
        output = "test one::two ... ok\ntest three ... FAILED\ntest four_and_more ... ok\n"
        self.assertEqual(repairs.passed(output, ["one::two", "three", "four"]), ["one::two"])

    def test_results_that_differ_or_are_missing_are_not_equal(self):
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(same_digests.compare("run", {"a": 1, "b": 2, "c": None}, {"a": 1, "b": 3, "d": 4}), (1, 4))


class Words(InScratch):
    """The lint of wording: `next_word` and `folder` below are planted paraphrases."""

    def found(self, text, name="a.rs"):
        return [(line, what) for line, what, _ in words.findings(name, text)]

    def test_a_paraphrase_is_found_in_prose_and_names_and_its_term_is_not(self):
        lines = ["// Where the next word goes.", "let next_word = 1;", 'let name = "a folder";', "// The next token."]
        found = self.found("\n".join(lines))
        self.assertIn((1, "word"), found)
        self.assertIn((2, "next_word"), found)
        self.assertIn((3, "folder"), found)
        self.assertNotIn(4, [line for line, _ in found])

    def test_strings_over_several_lines_are_prose_and_code_is_not(self):
        self.assertEqual(self.found('let a = "one \\\n    word \\\n    two";\nword(\'"\', word);'), [(2, "word")])
        self.assertEqual(self.found('"""One\nword."""\nword = 1\n', "a.py"), [(2, "word")])

    def test_long_lines_are_found_and_addresses_are_not(self):
        self.assertEqual(self.found("a" * 120 + "\n" + "a" * 121), [(2, "121 columns")])
        self.assertEqual(self.found("a" * 121, "a.md"), [(1, "121 columns")])
        self.assertEqual(self.found("| " + "a" * 121 + "\n```\n" + "a" * 121 + "\n```\n", "a.md"), [])
        self.assertEqual(self.found("// https://example.org/" + "a" * 121), [])

    def test_a_planted_finding_of_a_checkout_is_refused_with_its_line(self):
        subprocess.run(["git", "init", "--quiet", str(self.dir)], check=True)
        (self.dir / "run").write_text("#!/bin/sh\ntrue # A folder.\n")
        (self.dir / "a.rs").write_text("// A directory.\n// A folder of labels.\n")
        for path in (self.dir, self.dir / "a.rs"):
            status, out = call(words.main, [path])
            self.assertEqual(status, 1)
            self.assertIn('a.rs:2: "folder": write directory', out)
            self.assertEqual('run:2: "folder": write directory' in out, path == self.dir)
        (self.dir / "run").unlink()
        (self.dir / "a.rs").write_text("// A directory.\n")
        self.assertEqual(call(words.main, [self.dir]), (0, "0 findings\n"))


class Size(unittest.TestCase):
    def test_lines_of_src_are_added_up_per_crate_without_tests(self):
        lengths = {"crates/a/src/b.rs": 2, "crates/a/src/c/d.rs": 3, "crates/a/tests/it/e.rs": 5,
                   "examples/src/f.rs": 7, "crates/cuda-emulator/src/lib.rs": 11,
                   "examples/tests/recipes/own_block/src/lib.rs": 13}
        self.assertEqual(size.by_crate(lengths), {"crates/a": 5, "examples": 7})

    def test_too_little_saved_or_a_file_too_long_is_short(self):
        before = {"crates/a/src/b.rs": 8000}
        self.assertEqual(size.verdict(before, {"crates/a/src/b.rs": 300}), ("src:-7700,p90:300,max:300", "ok"))
        self.assertEqual(size.verdict(before, {"crates/a/src/b.rs": 501})[1], "short")
        self.assertEqual(size.verdict({}, {"crates/a/src/b.rs": 300})[1], "short")
        self.assertEqual(size.p90([1] * 9 + [2]), 1)
        self.assertEqual(size.p90([1] * 8 + [2] * 2), 2)


if __name__ == "__main__":
    unittest.main()
