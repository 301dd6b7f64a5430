"""Checks of unpack.py, prepare_sentences.py, to_tracker.py, words.py and the verdicts of claims/*.py.

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
import kernel_ledger  # noqa: E402
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
import speed_prompt_bf16  # noqa: E402
import to_tracker  # noqa: E402
import trackers  # noqa: E402
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
    SASS = """//--------------------- .text.first --------------------------
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E.U16.CONSTANT R8, desc[UR4][R2.64] ;
        /*0030*/                   LDG.E R8, desc[UR4][R2.64+0x4] ;
        /*0040*/                   LDSM.16.MT88.4 R8, [R3] ;
        /*0050*/                   HMMA.16816.F32.BF16 R4, R4, R8, R4 ;
        /*0060*/             @!UP1 HMMA.16816.F32.BF16 R4, R4, R8, R4 ;
        /*0070*/              @P3  STG.E.64 desc[UR4][R2.64], R4 ;
        /*0080*/                   LD.E.U8 R4, desc[UR4][R2.64] ;
        /*0090*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00a0*/                   STL.64 [R1+0x8], R4 ;
        /*00b0*/                   MUFU.EX2 R4, R4 ;
.L_x_1:
        /*00c0*/                   EXIT ;
.text.second:
        /*0000*/                   LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64] ;
        /*10010*/                  LDL.LU R4, [R1] ;
"""
    PTX = """.visible .entry first(
	.param .align 8 .b8 first_param_0[40]
)
.maxntid 128, 1, 1
.minnctapersm 2
{
}
.visible .entry second(
	.param .align 8 .b8 second_param_0[40]
)
.maxntid 1024, 1, 1
{
"""
    PLAN = """    static constexpr int kRow = Head + 8;
    static constexpr int kForwardBands = 2;
    static constexpr int kForwardKeys = Head <= 80 ? 64 : 32;
    static constexpr int kKeyQueries = 32;
template <int Head, bool Wide> constexpr int kBackwardBands = Head <= 32 || Wide ? 2 : 1;
"""

    def kernels(self, *names, **changes):
        numbers = {"threads": 256, "registers": 40, "blocks": 6, "shared": 128, "LDG.128": 4, **changes}
        return {name: {architecture: dict(numbers) for architecture in kernel_ledger.ARCHITECTURES}
                for name in names or ["norm_f32"]}

    def ledger(self, reason="", **changes):
        return kernel_ledger.text_of(self.kernels(**changes), {"norm_f32": reason})

    def test_the_assemblers_report_is_read_in_both_forms(self):
        none = {"stack": 0, "spill_stores": 0, "spill_loads": 0, "shared": 0}
        self.assertEqual(kernels_compile.kernels_of(self.OUTPUT), {
            "first": {"registers": 80, "stack": 32, "spill_stores": 8, "spill_loads": 12, "shared": 128},
            "second": {**none, "registers": 24},
        })

    def test_instructions_are_counted_by_width_and_predicate(self):
        self.assertEqual(kernel_ledger.counts(self.SASS), {
            "first": {"LDG.128": 1, "LDG.16": 1, "LDG.32": 1, "LDSM": 1, "HMMA": 2, "predicated HMMA": 1, "STG.64": 1,
                      "LD": 1, "BAR": 1, "STL": 1, "MUFU": 1},
            "second": {"LDGSTS": 1, "LDL": 1},
        })
        self.assertEqual(kernel_ledger.most_threads(self.PTX), {"first": 128, "second": 1024})

    def test_what_runs_beside_a_product_of_a_warpgroup_is_between_its_waits(self):
        lines = ("MUFU.EX2 R4, R4", "HGMMA.64x128x16.F32 R24, gdesc[UR4]", "WARPGROUP.DEPBAR.LE gsb0, 0x1",
                 "MUFU.EX2 R4, R4", "MUFU.EX2 R5, R5", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "MUFU.RCP R4, R4")
        sass = ".text.third:\n" + "".join(f"        /*{at:04x}*/                   {line} ;\n"
                                           for at, line in enumerate(lines))
        self.assertEqual(kernel_ledger.counts(sass), {"third": {"MUFU": 4, "MUFU_beside": 2, "HGMMA": 1}})

    def test_a_unit_for_one_architecture_names_it_in_its_first_line(self):
        self.assertEqual(kernel_ledger.architectures_of("// for sm_90a alone\nvoid f();\n"), ("sm_90a",))
        self.assertEqual(kernel_ledger.architectures_of("void f();  // for sm_90a alone\n"),
                         kernel_ledger.ARCHITECTURES)
        kernels = {"norm_f32": {"sm_90a": self.kernels()["norm_f32"]["sm_90a"]}}
        self.assertIn("registers 40,", kernel_ledger.text_of(kernels, {}))
        self.assertEqual(kernel_ledger.broken_rules(kernels, {}), [])

    def test_blocks_of_a_multiprocessor_are_those_of_nvidias_calculator(self):
        # By cuda_occupancy.h of nvidia-cuda-runtime 13.0.96. Registers, shared memory, threads: blocks on each device.
        known = {
            (32, 0, 256): (8, 6, 8, 8),
            (33, 0, 256): (6, 6, 6, 6),
            (16, 0, 32): (32, 24, 32, 32),
            (128, 34824, 256): (2, 2, 2, 2),
            (129, 0, 256): (1, 1, 1, 1),
            (168, 36880, 128): (3, 2, 3, 3),
            (169, 36880, 128): (2, 2, 2, 2),
            (255, 68000, 128): (2, 1, 2, 2),
            (64, 512, 1024): (1, 1, 1, 1),
            (65, 0, 1024): (0, 0, 0, 0),
            (40, 101376, 64): (1, 1, 2, 2),
            (40, 101377, 64): (1, 0, 2, 2),
            (40, 232448, 64): (0, 0, 1, 1),
            (40, 232449, 64): (0, 0, 0, 0),
            (232, 0, 96): (2, 2, 2, 2),
        }
        for (registers, shared, threads), blocks in known.items():
            found = tuple(kernel_ledger.blocks(a, registers, shared, threads) for a in kernel_ledger.ARCHITECTURES)
            self.assertEqual(found, blocks, (registers, shared, threads))

    def test_shared_memory_of_attention_follows_from_its_plan(self):
        def at_launch(kernel):
            return kernel_ledger.shared_at_launch(self.PLAN, kernel)

        self.assertEqual(at_launch("attention_mma_forward_plain_64_bf16"), (128 + 256) * 72 * 2)
        self.assertEqual(at_launch("attention_mma_forward_general_128_f16"), (128 + 128) * 136 * 2)
        self.assertEqual(at_launch("attention_mma_backward_keys_plain_32_f16"), (256 + 128) * 40 * 2)
        self.assertEqual(at_launch("attention_mma_backward_keys_plain_64_f16"), (128 + 128) * 72 * 2)
        self.assertEqual(at_launch("attention_mma_wide_keys_plain_64_f16"), (256 + 128) * 72 * 2)
        self.assertEqual(at_launch("attention_wgmma_forward_128_f16"), 5 * 128 * 128 * 2 + 1024)
        self.assertEqual(at_launch("attention_forward_64"), 0)

    def test_a_ledger_names_kernels_with_equal_lines_together_and_is_read_back(self):
        kernels = self.kernels("norm_bf16", "norm_f16", "norm_f32", "loss_f32", "cast_integers")
        kernels["norm_f32"]["sm_100"]["registers"] = 48
        for kernel in ("norm_bf16", "norm_f16", "loss_f32"):
            kernels[kernel]["sm_80"]["STL"] = 1
        reasons = dict.fromkeys(("norm_bf16", "norm_f16"), "it has to, twice") | {"norm_f32": "no longer needed"}
        text = kernel_ledger.text_of(kernels, reasons)
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        rest = "blocks 6, shared 128"
        self.assertEqual(lines, [
            f"cast_integers: threads 256, registers 40, {rest}, LDG.128 4",
            f"loss_f32: threads 256, registers 40, {rest}, STL 1/0/0/0, LDG.128 4",
            f"norm_{{bf16,f16}}: threads 256, registers 40, {rest}, STL 1/0/0/0, LDG.128 4",
            "    reason: it has to, twice",
            f"norm_f32: threads 256, registers 40/40/40/48, {rest}, LDG.128 4",
        ])
        cells, found = kernel_ledger.read(text)
        self.assertEqual(found, {"norm_bf16": "it has to, twice", "norm_f16": "it has to, twice"})
        self.assertEqual(cells["norm_f16"]["STL"], "1/0/0/0")
        self.assertEqual(kernel_ledger.changes(text, text), [])

    def test_what_is_as_in_the_ledger_is_fine(self):
        self.assertEqual(kernels_compile.findings(self.kernels(), self.ledger()), [])

    def test_every_value_that_changes_is_found_with_the_command_that_accepts_it(self):
        for column in kernel_ledger.COLUMNS:
            for after in (0, 5) if column in ("shared", "LDG.128") else (5,):
                spilled = self.ledger(reason="known", stack=8, **({column: 3} if column != "stack" else {}))
                found = kernels_compile.findings(self.kernels(**{"stack": 8, column: after}), spilled)
                self.assertEqual(len(found), 2, found)
                self.assertRegex(found[0], rf"^norm_f32: {column} was \d+ and is {after}$")
                self.assertIn("--accept", found[1])

    def test_dtypes_that_change_alike_are_one_finding(self):
        before = kernel_ledger.text_of(self.kernels("norm_bf16", "norm_f16", "cast"), {})
        after = self.kernels("norm_bf16", "norm_f16", "cast", **{"LDG.128": 0, "LDG.32": 16})
        after["cast"] = self.kernels("cast")["cast"]
        found = kernels_compile.findings(after, before)
        self.assertEqual(found[:-1], ["norm_{bf16,f16}: LDG.128 was 4 and is 0, LDG.32 was 0 and is 16"])

    def test_local_memory_takes_a_reason(self):
        for column in kernel_ledger.LOCAL:
            spilled = {column: 4}
            found = kernels_compile.findings(self.kernels(**spilled), self.ledger(**spilled))
            self.assertEqual(len(found), 1, found)
            self.assertIn("gives no reason", found[0])
            self.assertEqual(kernels_compile.findings(self.kernels(**spilled), self.ledger("why", **spilled)), [])

    def test_a_product_under_a_predicate_and_a_block_that_does_not_fit_are_found(self):
        for changes in ({"predicated HMMA": 1}, {"predicated LDSM": 1}, {"blocks": 0}):
            found = kernels_compile.findings(self.kernels(**changes), self.ledger(**changes))
            self.assertEqual(len(found), len(kernel_ledger.ARCHITECTURES), found)

    def test_kernels_that_came_or_went_and_a_text_by_hand_are_found(self):
        self.assertIn("norm_f32: not in the ledger", kernels_compile.findings(self.kernels(), ""))
        self.assertIn("norm_f32: in the ledger, but no unit has it", kernels_compile.findings({}, self.ledger()))
        self.assertIn("the text is not", kernels_compile.findings(self.kernels(), self.ledger() + "\n")[0])


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

    def test_a_prompt_in_bf16_must_be_read_fast_and_generation_stay_as_it_was(self):
        text = self.dir / "text"
        text.write_text("call me ishmael")

        def read(ours_slow=None, theirs=(100, 100, 100)):
            """llama.cpp reads 100 tokens/s, ours 130 in bf16 and 40 in f32 but for one side, which is given."""
            values = {file: iter(theirs) for file in ("bf16", "q8_0")}
            base = {"device": "cpu (2 threads, amx)", "peak_rss_bytes": 1, "ids": [1], "prompt_ids": [2],
                    "tokens_per_s": 10}

            def llama(path, prompt):
                self.assertEqual(prompt, [2])
                return base | {"system_info": "", "prompt_tokens_per_s": next(values[path.stem])}

            def ours(_bench, model, dtype, _text, _tokens, _rounds, more, variables):
                self.assertEqual(bool(more), model.suffix == ".gguf")
                name = "before" if variables else model.stem
                record = base | {"prompt_tokens_per_s": 40 if dtype == "f32" else 130}
                return record | (ours_slow or {}).get(name, {})

            with mock.patch.object(speed_prompt_bf16, "llama_decode", llama), \
                    mock.patch.object(speed_prompt_bf16, "ours", ours):
                return call(speed_prompt_bf16.main, ["bench", self.dir, text, "--pairs", "3"])

        with mock.patch.dict("os.environ"):
            self.assertEqual(read(), (
                0, "speed-prompt-bf16 amx,f32=3.25x,llama.cpp:bf16=1.30x,llama.cpp:q8_0=1.30x,generation=1.00x ok\n"))
            self.assertEqual(read({"q8_0": {"prompt_tokens_per_s": 119}})[0], 1)
            self.assertEqual(read({"f32": {"prompt_tokens_per_s": 50}})[0], 1)
            self.assertEqual(read({"before": {"tokens_per_s": 11}})[0], 1)
            self.assertEqual(read(theirs=(100, 112, 100))[0], 75)

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
        text = 'let a = "one \\\n    behind \\\n    two";\nbehind(\'"\', behind);'
        self.assertEqual(self.found(text), [(2, "behind")])
        self.assertEqual(self.found('"""One\nbehind."""\nbehind = 1\n', "a.py"), [(2, "behind")])

    def test_identifiers_are_split_at_underscores_and_case(self):
        text = "const MOST_BYTES: usize = 1;\nconst BYTE_LIMIT: u8 = 2;\nlet word_size = 3;\nstruct WordFactor;\n" \
            "fn goes_on() {}\nlet team = 4;\nlet leave = 5;\nlet is_judged = 6;\n"
        names = ["MOST_BYTES", "BYTE_LIMIT", "word_size", "WordFactor", "goes_on", "team", "leave", "is_judged"]
        self.assertEqual(self.found(text), list(enumerate(names, 1)))
        self.assertEqual(self.found("const MAX_BYTES: usize = 1;\nlet password = limit;\nfn at_most() {}"), [])

    def test_an_identifier_is_found_once_a_file_where_no_row_excuses_it(self):
        text = "fn team() {}\nlet a = team();\nlet b = team();\n"
        rows = words.allowed_of("a.rs  fn team  a test\n")
        self.assertEqual(self.found(text), [(1, "team")])
        self.assertEqual([line for line, *_ in words.findings("a.rs", text, rows)], [2])

    def test_documentation_begins_with_a_noun(self):
        text = "/// What it does.\n/// Of all.\nfn a() {}\n/// Number of ranks.\n/// How many.\nfn b() {}\n"
        name = "crates/bmtrain-core/src/a/b.rs"
        self.assertEqual(self.found(text, name), [(1, "What")])
        self.assertEqual(self.found("/// Of the result.\nshape: Shape,", name), [(1, "Of")])
        self.assertEqual(self.found(text, "crates/bmtrain-core/tests/b.rs"), [])

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


@unittest.skipIf(sys.version_info < (3, 11), "tomllib came with Python 3.11")
class Trackers(InScratch):
    START = '{"kind":"start","time":{"unix_seconds":100.0,"threads":1}}\n'

    def copied(self, metrics, recipe='[run]\nname = "n"\n[train]\nlr = 0.5\n'):
        """What a tracker is given of a run: status, and the Run."""
        (self.dir / "metrics.jsonl").write_text(self.START + metrics)
        (self.dir / "recipe.toml").write_text(recipe)
        given = []
        tracker = mock.patch.dict(to_tracker.TRACKERS, {"aim": lambda run, *_: given.append(run)})
        with tracker:
            status, _ = call(to_tracker.main, ["aim", self.dir, "--project", "p"])
        return status, given

    def test_a_step_is_a_row_with_contexts_and_times(self):
        status, (run,) = self.copied(
            '{"kind":"step","step":2,"loss":"NaN","flag":true,"list":[1],"batch":"1f","time":{"seconds":3.5}}\n'
            '{"kind":"test","step":1,"metrics":{"f1":"-Infinity"},"time":{"seconds":5.0}}\n'
            '{"kind":"eval","step":2,"metrics":{"f1":0.25},"best":true,"time":{"seconds":4.0}}\n{"kind":"ev')
        self.assertEqual((status, run.name, run.tags, run.settings["train"]), (0, "n", [], {"lr": 0.5}))
        (first, at_first, tested), (second, at_second, trained) = run.rows
        self.assertEqual((first, at_first, second, at_second), (1, 105.0, 2, 103.5))
        self.assertEqual(tested, {"test/f1": float("-inf"), "test/seconds": 5.0})
        self.assertTrue(trained.pop("train/loss") != trained.get("train/loss"))
        self.assertEqual(trained, {"train/flag": 1.0, "time/seconds": 3.5, "validation/f1": 0.25,
                                   "validation/seconds": 4.0})

    def test_what_a_resume_overtook_is_left_out(self):
        step = '{{"kind":"step","step":{},"loss":{}}}\n'
        _, (run,) = self.copied(step.format(1, 1) + step.format(2, 2) + step.format(3, 3) + '{"kind":"st\n'
                                '{"kind":"resume","step":1,"time":{"unix_seconds":200.0}}\n' + step.format(2, 4))
        self.assertEqual(run.rows, [(1, 100.0, {"train/loss": 1.0}), (2, 200.0, {"train/loss": 4.0})])
        self.assertEqual(dict(to_tracker.flat({"a": {"b": {"c": 1}}, "d": 2})), {"a.b.c": 1, "d": 2})

    def test_a_run_without_scalars_is_refused(self):
        status, given = self.copied("")
        self.assertIn("it has no scalars yet", status)
        self.assertEqual(given, [])

    def test_scalars_are_compared_bit_for_bit(self):
        nan = float("nan")
        same = lambda found, **form: trackers.same({("a", 1): 0.1, ("a", 2): nan}, found, **form)
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertTrue(same({("a", 1): [0.1], ("a", 2): [nan]}))
            self.assertTrue(same({("a", 1): [0.10000000149011612], ("a", 2): [nan]}, f32=True))
            for wrong in ({("a", 1): [0.10000000149011612], ("a", 2): [nan]}, {("a", 1): [0.1], ("a", 2): [1.0]},
                          {("a", 1): [0.1, 0.1], ("a", 2): [nan]}, {("a", 1): [0.1]},
                          {("a", 1): [0.1], ("a", 2): [nan], ("a", 3): [0.0]}):
                self.assertFalse(same(wrong), wrong)


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
