"""Tests of the package as it is installed. They need the repository's golden models, and what scripts/assets.sh
fetches with `bert sent llama`: all-MiniLM-L6-v2, sentences and SmolLM2, in $BMTRAIN_CACHE/assets and data."""

import ast
import contextlib
import datetime
import gc
import inspect
import itertools
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import bmtrain
import example
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "crates" / "model-center" / "tests" / "golden"
CACHE = pathlib.Path(os.environ.get("BMTRAIN_CACHE", pathlib.Path.home() / ".cache" / "bmtrain"))
MINILM = CACHE / "assets" / "minilm"
SENTENCES = CACHE / "data" / "movie_reviews" / "train.jsonl"
SMOLLM2 = CACHE / "assets" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
DECODER = GOLDEN / "llama_a" / "lm"
ADAPTERS = GOLDEN / "adapters"
PREDICTIONS = GOLDEN / "predictions"
LORA = {"method": "lora", "rank": 4, "alpha": 8, "targets": ["q_proj", "v_proj", "down_proj"]}

SAMPLES = [
    {"text": "A warm and funny film.", "label": "positive"},
    {"text": "Dull.", "label": "negative"},
    {"text": "I would see it again, and again.", "label": "positive"},
    {"text": "The plot goes nowhere at all.", "label": "negative"},
]


def rows(count=4, length=8, vocabulary=40):
    """Token ids that are the same each time."""
    return np.arange(count * length, dtype=np.int64).reshape(count, length) * 7 % vocabulary + 4


@contextlib.contextmanager
def interrupted(after):
    """Sends this process the signal of Ctrl-C some seconds from now."""
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Messages(unittest.TestCase):
    """Mistakes are exceptions of one line with place, reason and fix."""

    def refused(self, kind, *parts):
        test = self

        class Refused:
            def __enter__(self):
                return self

            def __exit__(self, found, error, _):
                test.assertIsNotNone(found, "nothing was refused")
                test.assertIsInstance(error, kind)
                test.assertIsInstance(error, bmtrain.Error)
                text = str(error)
                for part in (*parts, ": ", "(fix: "):
                    test.assertIn(part, text)
                test.assertNotIn("\n", text)
                return True

        return Refused()

    def test_a_directory_without_a_model(self):
        with self.refused(bmtrain.ModelError, "no/such/model"):
            bmtrain.Model("no/such/model")

    def test_arguments(self):
        with self.refused(bmtrain.ArgumentError, "head", '"bert"', "mlm"):
            bmtrain.Model(DECODER, head="bert")
        with self.refused(bmtrain.ArgumentError, "threads"):
            bmtrain.Model(DECODER, threads=0)
        with self.refused(bmtrain.ArgumentError, "device", "tpu"):
            bmtrain.Model(DECODER, device="tpu")
        model = bmtrain.Model(DECODER)
        with self.refused(bmtrain.ArgumentError, "train.learning_rate", "train.lr"):
            bmtrain.Trainer(model, steps=10, learning_rate=1e-3)
        with self.refused(bmtrain.ArgumentError, "train.batch_size", "a step takes the batches"):
            bmtrain.Trainer(model, steps=10, batch_size=3)
        with self.refused(bmtrain.ArgumentError, "train.ema", "train with a recipe"):
            bmtrain.Trainer(model, steps=10, ema=0.9)
        with self.refused(bmtrain.ArgumentError, "temperatur"):
            model.generate(np.array([5, 6]), temperatur=0.7)
        # The model is as it was.
        self.assertEqual(model.forward(bmtrain.Batch(rows()))["logits"].shape[:2], (4, 8))

    def test_batches(self):
        with self.refused(bmtrain.ArgumentError, "input_ids", "[4]"):
            bmtrain.Batch([1, 2, 3, 4])
        with self.refused(bmtrain.ArgumentError, "input_ids", "float"):
            bmtrain.Batch([[1.0, 2.0]])
        with self.refused(bmtrain.ArgumentError, "attention_mask", "[4, 7]"):
            bmtrain.Batch(rows(), attention_mask=np.ones((4, 7), dtype=np.int8))
        with self.refused(bmtrain.ArgumentError, "labels", "[3]"):
            bmtrain.Batch(rows(), labels=[0, 1, 2])
        with self.refused(bmtrain.ArgumentError, "label_kind", '"class"', "token-classes"):
            bmtrain.Batch(rows(), labels=[0, 1, 1, 0], label_kind="class")
        trainer = bmtrain.Trainer(bmtrain.Model(DECODER), steps=1)
        with self.refused(bmtrain.DataError, "labels"):
            trainer.step(bmtrain.Batch(rows()))
        with self.refused(bmtrain.DataError, "batch"):
            trainer.step([])
        with self.refused(bmtrain.ArgumentError, "batches", "int"):
            trainer.step(7)
        with self.refused(bmtrain.DataError, "input_ids[0, 0]", "1000004"):
            trainer.step(bmtrain.Batch(rows() + 1_000_000, labels=rows()))

    def test_records(self):
        model = bmtrain.Model(MINILM, head="cls", labels=["negative", "positive"])
        with self.refused(bmtrain.DataError, "records, row 2", "label"):
            model.dataset([SAMPLES[0], {"text": "no label"}])
        with self.refused(bmtrain.DataError, "reviews, row 1", "neutral", "negative"):
            model.dataset([{"text": "so so", "label": "neutral"}], name="reviews")
        with self.refused(bmtrain.DataError, "records, row 2", "str"):
            model.dataset([SAMPLES[0], "text"])
        with self.refused(bmtrain.DataError, "records"):
            model.dataset([])

    def test_what_are_no_records(self):
        model = bmtrain.Model(MINILM, head="cls", labels=["negative", "positive"])

        class Frame(list):
            """Iterates over the names of its columns, as tables do."""

            columns, to_dict = ["text", "label"], None

        with self.refused(bmtrain.DataError, "records", "Frame", 'df.to_dict("records")'):
            model.dataset(Frame(["text", "label"]))
        with self.refused(bmtrain.DataError, "records, row 1", "str", 'df.to_dict("records")'):
            model.dataset(["text", "label"])
        with self.refused(bmtrain.DataError, "records", "dict", "a list"):
            model.dataset({"text": ["Dull."], "label": ["negative"]})
        with self.refused(bmtrain.DataError, "reviews", "int"):
            model.dataset(7, name="reviews")

    def test_columns_that_are_not_used_hold_anything(self):
        model = bmtrain.Model(MINILM, head="cls", labels=["negative", "positive"])
        other = {"date": datetime.date(2024, 2, 29), "score": math.nan, "image": object(), "id": 2**80, 3: "three"}
        data = model.dataset([{**sample, **other} for sample in SAMPLES])
        self.assertEqual(data.fingerprint, model.dataset(SAMPLES).fingerprint)
        inner = [{"sample": {**sample, **other}, **other} for sample in SAMPLES]
        data = model.dataset(inner, text="sample.text", label="sample.label")
        self.assertEqual(data.fingerprint, model.dataset(SAMPLES).fingerprint)
        for value, reason in [
            (math.nan, "NaN is not finite"),
            (datetime.date(2024, 2, 29), "a value of type date"),
            (2**80, "64 bits"),
            (None, "null"),
        ]:
            with self.refused(bmtrain.DataError, "records, row 2", '"text"', reason):
                model.dataset([SAMPLES[0], {**SAMPLES[1], "text": value}])
        with self.refused(bmtrain.DataError, "records, row 1", '"sample.text"', "date"):
            model.dataset([{"sample": {"text": other["date"]}}], text="sample.text")
        with self.refused(bmtrain.DataError, "records, row 1", '"text"', "review, date"):
            model.dataset([{"review": "Dull.", "date": other["date"]}])

    def test_adapters(self):
        def refused(adapter, *parts, kind=bmtrain.ArgumentError, **arguments):
            with self.refused(kind, *parts):
                bmtrain.Model(DECODER, adapter=adapter, **arguments)

        refused({"method": "lora", "r": 8}, "adapter.r", "adapter.rank")
        refused({"method": "lorra"}, "adapter.method", '"lora"')
        refused({"method": "lora", "rank": 0}, "adapter.rank=0", "from 1")
        refused({"method": "lora", "rank": "8"}, "adapter.rank", "string")
        refused({"method": "lora", "dropout": 1.5}, "adapter.dropout")
        refused({"rank": 8}, "adapter.rank", 'adapter.method = "lora"')
        refused({"method": "lora", "virtual_tokens": 4}, "adapter.virtual_tokens", '"prompt"')
        refused({"method": "lora", "targets": ["q_prj"]}, "adapter.targets", "q_prj")
        refused({"method": "lora", "trained": ["lm_heads"]}, "adapter.trained", "lm_heads")
        refused({"method": "lora", "rank": None}, "adapter.rank", "None")
        refused({8: "lora"}, "adapter: a key is not text")
        refused(7, "adapter", "int", "PEFT directory")
        refused("no/such/adapter", "no/such/adapter", kind=bmtrain.Error)
        refused(LORA, "adapter_weights", adapter_weights=[0.5])
        refused(None, "adapter_weights", adapter_weights=[0.5])
        refused([ADAPTERS / "llama"] * 2, "adapter_weights", "1 for 2", adapter_weights=[0.5])
        refused(LORA, "frozen", "trained", frozen=["*embed*"])
        refused(LORA, "only", "trained", only=["*embed*"])
        with self.refused(bmtrain.ModelError, str(ADAPTERS / "llama"), "adapter= gives another", "adapter's model"):
            bmtrain.Model(ADAPTERS / "llama", adapter=LORA)
        with self.refused(bmtrain.ArgumentError, "merged", "no adapter"):
            bmtrain.Model(DECODER).save("nowhere", merged=True)

    def test_what_cannot_be_predicted(self):
        classes = bmtrain.Model(PREDICTIONS / "classes", threads=1)
        for inputs, options, message in [
            (3, {}, "it is of type int"),
            (["good", {"text": " "}], {}, "inputs, row 2"),
            ([{"body": "good"}], {}, 'no column "text"'),
            ("good", {"max_length": 900}, "max_length"),
            ("good", {"tokens": "words"}, "does not classify words"),
        ]:
            with self.assertRaises(bmtrain.Error) as raised:
                classes.predict(inputs, **options)
            self.assertIn(message, str(raised.exception))

    def test_what_an_iterator_raises_is_raised(self):
        def broken():
            yield SAMPLES[0]
            raise LookupError("the data base is away")

        with self.assertRaisesRegex(LookupError, "away"):
            bmtrain.Model(MINILM, head="cls", labels=["negative", "positive"]).dataset(broken())


class Arrays(unittest.TestCase):
    def test_what_goes_in_comes_out(self):
        ids = rows()
        mask = np.ones_like(ids)
        mask[0, 5:] = 0
        batch = bmtrain.Batch(ids.astype(np.int32), attention_mask=mask, labels=[0, 1, 1, 0])
        np.testing.assert_array_equal(batch.input_ids, ids)
        np.testing.assert_array_equal(batch.attention_mask, mask)
        np.testing.assert_array_equal(batch.labels, [0, 1, 1, 0])
        self.assertEqual((batch.rows, batch.length, batch.tokens, batch.samples), (4, 8, 29, []))
        # Views of any strides are read as they look.
        np.testing.assert_array_equal(bmtrain.Batch(ids.T[::-1]).input_ids, ids.T[::-1])

    def test_logits_and_loss_are_those_of_the_definition(self):
        model = bmtrain.Model(DECODER)
        ids = rows()
        outputs = model.forward(bmtrain.Batch(ids, labels=ids))
        logits = outputs["logits"].astype(np.float64)[:, :-1]
        self.assertEqual(outputs["logits"].shape, (4, 8, model.vocab_size))
        of_next = np.take_along_axis(logits, ids[:, 1:, None], axis=2)[..., 0]
        loss = (np.log(np.exp(logits).sum(axis=2)) - of_next).mean()
        self.assertAlmostEqual(outputs["loss"], loss, places=5)

    def test_parameters_are_read_by_name(self):
        model = bmtrain.Model(DECODER)
        values = [model.parameter(name) for name in model.parameter_names]
        self.assertEqual(sum(value.size for value in values), model.parameter_count)


class Training(unittest.TestCase):
    def test_ten_steps_of_minilm_are_those_of_a_run(self):
        settings = {
            "model.path": str(MINILM),
            "data.train": str(SENTENCES),
            "data.eval": str(SENTENCES),
            "data.eval_limit": 4,
            "train.steps": 10,
            "eval.every": "end",
            "log.every": 1,
        }
        with tempfile.TemporaryDirectory() as scratch:
            out, own = pathlib.Path(scratch, "run"), pathlib.Path(scratch, "own")
            recipe = ROOT / "examples" / "recipes" / "quickstart.toml"
            self.assertEqual(bmtrain.finetune(recipe, {**settings, "output.dir": str(out)}), out)
            expected = [record["loss"] for record in bmtrain.read_metrics(out, "step")]
            started = time.perf_counter()
            losses = example.train(MINILM, SENTENCES, own)
            print(f"figure: ten steps in {time.perf_counter() - started:.1f} s, losses {losses}")
            self.assertEqual(len(expected), 10)
            self.assertTrue(all(math.isfinite(loss) for loss in losses))
            self.assertEqual([np.float32(loss) for loss in losses], [np.float32(loss) for loss in expected])
            self.assertLess(np.mean(losses[5:]), np.mean(losses[:5]) + 0.05)
            classes = example.classify(own, ["A warm, funny, engaging film.", "Dull."])
            self.assertTrue(set(classes) <= {"negative", "positive"})
            run, saved = bmtrain.Model(out / "model"), bmtrain.Model(own)
            self.assertEqual(saved.labels, ["negative", "positive"])
            self.assertEqual(saved.initialized, [])
            for name in run.parameter_names:
                np.testing.assert_array_equal(run.parameter(name), saved.parameter(name), name)

    def test_gradients_of_several_batches_add_up(self):
        ids, losses = rows(), []
        for parts in (1, 2):
            model = bmtrain.Model(DECODER, threads=1)
            trainer = bmtrain.Trainer(model, steps=5, lr=1e-2, schedule="constant", warmup=0)
            split = [bmtrain.Batch(part, labels=part) for part in np.split(ids, parts)]
            results = [trainer.step(split) for _ in range(5)]
            losses.append([result.loss for result in results])
            self.assertEqual([result.step for result in results], [1, 2, 3, 4, 5])
            self.assertEqual((results[0].samples, results[0].tokens, results[0].lr), (4, 32, 1e-2))
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
        self.assertLess(losses[0][4], losses[0][0] - 0.1)

    def test_a_newer_trainer_takes_over(self):
        model = bmtrain.Model(DECODER)
        batch = bmtrain.Batch(rows(), labels=rows())
        first = bmtrain.Trainer(model, steps=5)
        first.step(batch)
        second = bmtrain.Trainer(model, steps=5, optimizer="lion", lr=1e-4)
        self.assertEqual(second.step(batch).step, 1)
        with self.assertRaisesRegex(bmtrain.ArgumentError, "newer trainer"):
            first.step(batch)

    def test_frozen_parameters_stay(self):
        model = bmtrain.Model(DECODER, frozen=["*embed*"])
        before = {name: model.parameter(name) for name in model.parameter_names}
        bmtrain.Trainer(model, steps=1, lr=1e-2, warmup=0).step(bmtrain.Batch(rows(), labels=rows()))
        changed = {name for name, value in before.items() if not np.array_equal(value, model.parameter(name))}
        frozen = {name for name in before if "embed" in name}
        self.assertTrue(frozen and changed)
        self.assertFalse(frozen & changed)


class Adapters(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)

    def logits(self, model):
        return model.forward(bmtrain.Batch(rows()))["logits"]

    def trained(self, adapter, steps=2, directory=DECODER):
        model = bmtrain.Model(directory, adapter=adapter)
        trainer = bmtrain.Trainer(model, steps=steps, lr=1e-2, warmup=0)
        for _ in range(steps):
            trainer.step(bmtrain.Batch(rows(), labels=rows()))
        return model

    def test_three_steps_of_lora_are_those_of_a_run(self):
        settings = {
            "model.path": str(MINILM),
            "data.train": str(SENTENCES),
            "data.eval": str(SENTENCES),
            "data.eval_limit": 4,
            "adapter": {"method": "lora", "rank": 8, "alpha": 16, "targets": ["query", "value"], "dropout": 0.1},
            "train.steps": 3,
            "train.lr": 3e-4,
            "eval.every": "end",
            "log.every": 1,
        }
        out, own = self.scratch / "run", self.scratch / "own"
        bmtrain.finetune(ROOT / "examples" / "recipes" / "quickstart.toml", {**settings, "output.dir": out})
        expected = [record["loss"] for record in bmtrain.read_metrics(out, "step")]
        losses = example.tune(MINILM, SENTENCES, own, steps=3)
        self.assertEqual([np.float32(loss) for loss in losses], [np.float32(loss) for loss in expected])
        for name in ("adapter_model.safetensors", "adapter_config.json", "tokenizer.json"):
            self.assertEqual((own / name).read_bytes(), (out / "model" / name).read_bytes(), name)
        self.assertFalse((own / "config.json").exists())
        # The adapter's directory alone opens the model with the classifier that it trained.
        model = bmtrain.Model(own, labels=["negative", "positive"])
        self.assertEqual((model.labels, model.initialized), (["negative", "positive"], []))
        self.assertEqual(model.directory, MINILM)
        self.assertIn("LoRA of rank 8", model.adapter)
        (batch,) = model.dataset(SAMPLES).batches(4, shuffle=False)
        logits = model.forward(batch)["logits"]
        self.assertEqual(logits.shape, (4, 2))
        np.testing.assert_array_equal(bmtrain.Model(own).forward(batch)["logits"], logits)
        # A recipe goes on from it.
        further = bmtrain.Model(MINILM, head="cls", labels=model.labels, adapter={"method": "lora", "path": own})
        np.testing.assert_array_equal(further.forward(batch)["logits"], logits)

    def test_the_adapter_alone_is_trained_saved_and_opened(self):
        before = bmtrain.Model(DECODER)
        model = self.trained({**LORA, "dropout": 0.1})
        self.assertTrue(model.trainable_names and not set(model.trainable_names) & set(before.parameter_names))
        for name in before.parameter_names:
            np.testing.assert_array_equal(model.parameter(name), before.parameter(name), name)
        logits, directory = self.logits(model), self.scratch / "deep" / "adapter"
        self.assertGreater(np.abs(logits - self.logits(before)).max(), 1e-3)
        model.save(directory)
        config = json.loads((directory / "adapter_config.json").read_text())
        self.assertEqual((config["task_type"], config["r"]), ("CAUSAL_LM", 4))
        self.assertEqual(config["base_model_name_or_path"], str(DECODER))
        for again in (bmtrain.Model(directory), bmtrain.Model(DECODER, adapter=directory)):
            np.testing.assert_array_equal(self.logits(again), logits)
            ids = np.array([5, 6, 7])
            expected = model.generate(ids, max_new_tokens=4, greedy=True)
            np.testing.assert_array_equal(again.generate(ids, max_new_tokens=4, greedy=True), expected)
        # What was opened can be saved as it is, and trained further.
        again.save(self.scratch / "again")
        name = "adapter_model.safetensors"
        self.assertEqual((self.scratch / "again" / name).read_bytes(), (directory / name).read_bytes())
        bmtrain.Trainer(again, steps=1, lr=1e-2, warmup=0).step(bmtrain.Batch(rows(), labels=rows()))
        self.assertFalse(np.array_equal(self.logits(again), logits))

    def test_a_merged_model_computes_what_the_adapter_does(self):
        model = self.trained(LORA)
        model.save(self.scratch / "merged", merged=True)
        merged = bmtrain.Model(self.scratch / "merged")
        self.assertIsNone(merged.adapter)
        self.assertEqual(merged.parameter_names, bmtrain.Model(DECODER).parameter_names)
        # W x + s B A x and (W + s B A) x are rounded at other places, in f32.
        np.testing.assert_allclose(self.logits(merged), self.logits(model), rtol=1e-4, atol=1e-5)
        # A directory is of a model or of an adapter.
        with self.assertRaisesRegex(bmtrain.ArgumentError, "config.json.*another directory"):
            model.save(self.scratch / "merged")
        model.save(self.scratch / "adapter")
        with self.assertRaisesRegex(bmtrain.ArgumentError, "adapter_config.json.*another directory"):
            model.save(self.scratch / "adapter", merged=True)

    def test_classifiers_of_adapters_are_opened(self):
        directory = ADAPTERS / "bert"
        model = bmtrain.Model(directory)
        self.assertEqual(model.directory.resolve(), GOLDEN / "bert_a" / "cls")
        logits = self.logits(model)
        self.assertEqual(logits.shape, (4, 2))
        for arguments in ({}, {"head": "cls"}, {"labels": ["no", "yes"]}):
            again = bmtrain.Model(GOLDEN / "bert_a" / "cls", adapter=directory, **arguments)
            np.testing.assert_array_equal(self.logits(again), logits)
        model.save(self.scratch / "saved")
        np.testing.assert_array_equal(self.logits(bmtrain.Model(self.scratch / "saved")), logits)
        # A new adapter of a classifier trains it, too, as in a run.
        tuned = bmtrain.Model(GOLDEN / "bert_a" / "cls", adapter={"method": "lora", "targets": ["query"]})
        self.assertIn("cls_projection.weight", tuned.trainable_names)

    def test_several_adapters_add_up(self):
        one, other = self.trained(LORA), self.trained({**LORA, "rank": 2}, steps=1)
        one.save(self.scratch / "one")
        other.save(self.scratch / "other")
        both = [self.scratch / "one", self.scratch / "other"]
        # Twice a half is one: powers of two, so that the updates are the same to the last rounding of their sum.
        halves = bmtrain.Model(DECODER, adapter=[both[0], both[0]], adapter_weights=[0.5, 0.5])
        np.testing.assert_allclose(self.logits(halves), self.logits(one), rtol=1e-4, atol=1e-5)
        model = bmtrain.Model(DECODER, adapter=both, adapter_weights=[1, -0.5])
        model.save(self.scratch / "merged", merged=True)
        merged = bmtrain.Model(self.scratch / "merged")
        np.testing.assert_allclose(self.logits(merged), self.logits(model), rtol=1e-4, atol=1e-5)
        with self.assertRaisesRegex(bmtrain.ArgumentError, "adapter: several adapters.*merged=True"):
            model.save(self.scratch / "both")
        with self.assertRaisesRegex(bmtrain.ArgumentError, "adapter: several adapters.*not trained"):
            bmtrain.Trainer(model, steps=1)

    def test_every_method_is_trained_and_opened_again(self):
        for number, adapter in enumerate(
            [
                {**LORA, "dora": True},
                {"method": "ia3"},
                {"method": "prompt", "virtual_tokens": 3},
                {"method": "prefix", "virtual_tokens": 3},
                {"method": "bottleneck", "bottleneck_size": 4, "placement": "feed-forward"},
            ]
        ):
            with self.subTest(adapter=adapter):
                model, directory = self.trained(adapter), self.scratch / str(number)
                model.save(directory)
                again = bmtrain.Model(directory)
                np.testing.assert_array_equal(self.logits(again), self.logits(model))
                self.assertEqual(again.trainable_names, model.trainable_names)
                if adapter["method"] in ("prompt", "prefix", "bottleneck"):
                    with self.assertRaisesRegex(bmtrain.ArgumentError, "adapter.method.*merged"):
                        model.save(self.scratch / "merged", merged=True)

    def test_the_frozen_model_is_quantised(self):
        lora = {"method": "lora", "rank": 4, "targets": ["query"]}
        model = bmtrain.Model(MINILM, head="cls", labels=["no", "yes"], adapter={**lora, "quantize": "nf4"})
        batch = bmtrain.Batch(rows(), labels=[0, 1, 1, 0])
        whole = bmtrain.Model(MINILM, head="cls", labels=["no", "yes"], adapter=lora)
        apart = np.abs(model.forward(batch)["logits"] - whole.forward(batch)["logits"]).max()
        self.assertTrue(0 < apart < 0.5, apart)
        trainer = bmtrain.Trainer(model, steps=3, lr=1e-2, warmup=0)
        losses = [trainer.step(batch).loss for _ in range(3)]
        self.assertLess(losses[2], losses[0])
        with self.assertRaisesRegex(bmtrain.ArgumentError, "merged: .*quantised.*without quantize"):
            model.save(self.scratch / "merged", merged=True)
        model.save(self.scratch / "adapter")
        again = {"method": "lora", "path": self.scratch / "adapter", "quantize": "nf4"}
        again = bmtrain.Model(MINILM, labels=["no", "yes"], adapter=again)
        np.testing.assert_array_equal(again.forward(batch)["logits"], model.forward(batch)["logits"])

    def test_the_tokenizer_of_an_adapter_comes_first(self):
        lora = {"method": "lora", "rank": 2, "targets": ["query"]}
        model = bmtrain.Model(MINILM, head="none", adapter=lora)
        model.save(self.scratch / "adapter")
        tokenizer = self.scratch / "adapter" / "tokenizer.json"
        text = json.loads(tokenizer.read_text())
        ids = text["model"]["vocab"]
        ids["films"], ids["music"] = ids["music"], ids["films"]
        tokenizer.write_text(json.dumps(text))
        own = bmtrain.Model(MINILM, head="none", adapter=self.scratch / "adapter")
        self.assertNotEqual(own.encode("Films").tolist(), model.encode("Films").tolist())
        own.save(self.scratch / "merged", merged=True)
        merged = bmtrain.Model(self.scratch / "merged", head="none")
        self.assertEqual(merged.encode("Films").tolist(), own.encode("Films").tolist())


class Data(unittest.TestCase):
    def setUp(self):
        self.model = bmtrain.Model(MINILM, head="cls", labels=["negative", "positive"])

    def test_an_iterator_becomes_batches(self):
        data = self.model.dataset(iter(SAMPLES), max_length=16)
        self.assertEqual((len(data), data.labels, data.truncated), (4, ["negative", "positive"], 0))
        batches = data.batches(2, shuffle=False)
        self.assertEqual(len(batches), 2)
        first, second = batches
        self.assertEqual((first.samples, second.samples), ([0, 1], [2, 3]))
        np.testing.assert_array_equal(first.labels, [1, 0])
        expected = self.model.encode(SAMPLES[0]["text"])
        np.testing.assert_array_equal(first.input_ids[0][: len(expected)], expected)
        self.assertEqual(first.attention_mask.sum(), first.tokens)

    def test_each_epoch_has_an_order_of_its_own(self):
        data = self.model.dataset({"text": str(number), "label": "positive"} for number in range(64))
        orders = [[batch.samples for batch in data.batches(4, epoch=epoch, seed=3)] for epoch in (0, 0, 1)]
        self.assertEqual(orders[0], orders[1])
        self.assertNotEqual(orders[0], orders[2])
        self.assertEqual(sorted(itertools.chain(*orders[2])), list(range(64)))

    def test_texts_of_language_models(self):
        model = bmtrain.Model(SMOLLM2)
        data = model.dataset(({"text": text} for text in ["one two three", "four five"]))
        (batch,) = data.batches(2, shuffle=False)
        self.assertEqual([model.decode(row[row != -100]) for row in batch.labels], ["one two three", "four five"])


class Predictions(unittest.TestCase):
    """Tiny models whose predictions transformers computed."""

    def expected(self, name):
        return json.loads((PREDICTIONS / name / "expected.json").read_text(encoding="utf-8"))

    def test_classes_of_texts_pairs_and_single_inputs(self):
        model, cases = bmtrain.Model(PREDICTIONS / "classes", threads=1), self.expected("classes")
        found = model.predict(case["input"] for case in cases)
        for case, prediction in zip(cases, found):
            scores = case["scores"]
            self.assertEqual(prediction["prediction"], max(scores, key=scores.get))
            for name, score in scores.items():
                self.assertAlmostEqual(prediction["probabilities"][name], score, places=5)
        text = cases[0]["input"]["text"]
        self.assertEqual(model.predict(text)["prediction"], found[0]["prediction"])
        self.assertEqual(model.predict([text, text])[1]["prediction"], found[0]["prediction"])
        other = model.predict([{"body": text, "date": datetime.date(2026, 1, 1)}], text="body", batch_size=1)
        self.assertEqual(other[0]["prediction"], found[0]["prediction"])

    def test_entities_and_answers(self):
        model, cases = bmtrain.Model(PREDICTIONS / "words_bytes", threads=1), self.expected("words_bytes")
        for case, prediction in zip(cases, model.predict([case["input"]["text"] for case in cases])):
            theirs = [(one["entity_group"], one["start"], one["end"]) for one in case["entities"]]
            self.assertEqual([(one["entity"], one["start"], one["end"]) for one in prediction["prediction"]], theirs)
        model, cases = bmtrain.Model(PREDICTIONS / "answers", threads=1), self.expected("answers")
        for case, prediction in zip(cases, model.predict([case["input"] for case in cases], max_length=32, stride=8)):
            self.assertEqual([prediction[key] for key in ("prediction", "start", "end")],
                             [case[key] for key in ("answer", "start", "end")])


class Generation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = bmtrain.Model(SMOLLM2)

    def test_texts_pieces_and_lists(self):
        pieces = []
        text = self.model.generate("The capital of France is", max_new_tokens=8, greedy=True, on_text=pieces.append)
        self.assertIn("Paris", text)
        self.assertEqual("".join(pieces), text)
        both = self.model.generate(["The capital of France is", "One, two, three,"], max_new_tokens=8, greedy=True)
        self.assertEqual(len(both), 2)
        self.assertEqual(both[0], text)

    def test_token_ids_in_token_ids_out(self):
        ids = self.model.encode("The capital of France is")
        new = self.model.generate(ids, max_new_tokens=4, greedy=True)
        self.assertEqual(new.dtype, np.int64)
        self.assertIn("Paris", self.model.decode(new))

    def test_chats_and_samples(self):
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        self.assertIn("Paris", self.model.chat(messages, max_new_tokens=16, greedy=True))
        samples = [self.model.generate("Once", max_new_tokens=6, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
        self.assertEqual(samples[0], samples[1])
        self.assertNotEqual(samples[0], samples[2])

    def test_what_a_callback_raises_ends_the_text(self):
        def refuse(_):
            raise LookupError("enough")

        with self.assertRaisesRegex(LookupError, "enough"):
            self.model.generate("The capital of France is", max_new_tokens=8, on_text=refuse)

    def test_ctrl_c_ends_a_text_and_the_model_continues(self):
        started = time.perf_counter()
        with self.assertRaises(KeyboardInterrupt), interrupted(1.0):
            self.model.generate("Once upon a time", max_new_tokens=7000, greedy=True)
        self.assertLess(time.perf_counter() - started, 20)
        self.assertTrue(self.model.generate("One, two,", max_new_tokens=2))

    def test_other_threads_run_meanwhile(self):
        turns, done = [], threading.Event()

        def count():
            while not done.is_set():
                turns.append(None)
                time.sleep(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        started = time.perf_counter()
        self.model.generate("Once upon a time", max_new_tokens=24, greedy=True)
        seconds = time.perf_counter() - started
        done.set()
        thread.join()
        # A thread that holds the lock would let the other one run between two calls alone.
        self.assertGreater(len(turns), 20 * seconds)

    def test_a_model_is_used_from_any_thread(self):
        results = []
        thread = threading.Thread(target=lambda: results.append(self.model.generate("One, two,", max_new_tokens=3)))
        thread.start()
        thread.join()
        self.assertEqual(results, [self.model.generate("One, two,", max_new_tokens=3)])


class Package(unittest.TestCase):
    def test_ctrl_c_between_steps(self):
        model = bmtrain.Model(MINILM, head="cls", labels=["negative", "positive"])
        (batch,) = model.dataset(SAMPLES).batches(4)
        trainer = bmtrain.Trainer(model, steps=100)
        steps = trainer.step(batch).step
        with self.assertRaises(KeyboardInterrupt), interrupted(0.5):
            while True:
                steps = trainer.step(batch).step
        # A step that the signal came into was finished.
        self.assertIn(trainer.step(batch).step, (steps + 1, steps + 2))

    def test_a_fork_is_told_that_it_has_no_model(self):
        model = bmtrain.Model(DECODER)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                model.forward(bmtrain.Batch(rows()))
                text = "there was no error"
            except bmtrain.Error as error:
                text = str(error)
            os.write(write, text.encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            self.assertIn("forked", pipe.read())
        os.waitpid(child, 0)

    def test_memory_is_given_back(self):
        def resident():
            return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        if not pathlib.Path("/proc/self/statm").exists():
            self.skipTest("no /proc")
        sizes = []
        for _ in range(6):
            bmtrain.Model(MINILM, head="none")
            gc.collect()
            sizes.append(resident())
        # A model has 91 MB.
        self.assertLess(sizes[-1] - sizes[1], 60e6)

    def test_import_takes_a_moment(self):
        code = "import time; t = time.perf_counter(); import bmtrain; print(time.perf_counter() - t)"
        seconds = sorted(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))
        print(f"figure: import {seconds[2]:.3f} s")
        self.assertLess(seconds[2], 0.3)

    def test_stubs_agree_with_the_package(self):
        stub = pathlib.Path(bmtrain.__file__).with_name("__init__.pyi")
        self.assertTrue(stub.with_name("py.typed").exists())
        declared = {}
        for node in ast.parse(stub.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                declared[node.name] = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
            elif isinstance(node, ast.FunctionDef):
                declared[node.name] = node
        self.assertEqual(set(declared) | {"__version__"}, set(bmtrain.__all__))
        for name, node in declared.items():
            there = getattr(bmtrain, name)
            self.assertTrue(there.__doc__, f"{name} has no documentation")
            if isinstance(node, ast.FunctionDef):
                self.same_arguments(name, node, there)
                continue
            public = {part for part in vars(there) if not part.startswith("_")}
            if issubclass(there, Exception):
                continue
            self.assertEqual({part for part in node if not part.startswith("_")}, public, name)
            for part, function in node.items():
                if any(getattr(mark, "id", "") == "property" for mark in function.decorator_list):
                    continue
                # Python 3.9 knows no arguments of such classes.
                if part == "__new__" and sys.version_info >= (3, 10):
                    self.same_arguments(f"{name}()", function, there, skip=1)
                elif not part.startswith("__"):
                    self.same_arguments(f"{name}.{part}", function, getattr(there, part))

    def same_arguments(self, name, node, there, skip=0):
        own = node.args
        declared = [argument.arg for argument in own.posonlyargs + own.args + own.kwonlyargs][skip:]
        declared += [own.kwarg.arg] if own.kwarg else []
        self.assertEqual(declared, list(inspect.signature(there).parameters), name)


if __name__ == "__main__":
    unittest.main()
