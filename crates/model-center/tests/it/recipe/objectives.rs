//! Tasks and objectives: columns, lengths, labels and metrics.

use super::of_directory;
use crate::recipes::{LEAST, load, mistakes, with};
use model_center::data::{LanguageModelingColumns, LanguageModelingTask, PROMPTS, SUPERGLUE, TemplateTask, find_task};
use model_center::metrics::Metric;
use model_center::recipe::{ClassWeights, EvalMetric, Resolved};

#[test]
fn weights_of_classes_are_a_table_by_name_or_balanced() {
    let weights = |sets: &[&str]| load(LEAST, sets).data.class_weights.clone();
    let given = |weights: &[(&str, f32)]| {
        Some(ClassWeights::Given(weights.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect()))
    };
    assert_eq!(weights(&[]), None);
    assert_eq!(weights(&["data.class_weights=balanced"]), Some(ClassWeights::Balanced));
    assert_eq!(weights(&["data.class_weights={yes = 2, no = 0.5}"]), given(&[("no", 0.5), ("yes", 2.0)]));
    assert_eq!(
        weights(&["data.class_weights.yes=2", "data.class_weights.no=1.5"]),
        given(&[("no", 1.5), ("yes", 2.0)])
    );
    let of_file = with("[data.class_weights]\nno = 1\nyes = 2");
    let changed = load(&of_file, &["data.class_weights.yes=3"]);
    assert_eq!(changed.data.class_weights, given(&[("no", 1.0), ("yes", 3.0)]));
    // A whole table takes the place of an earlier one, whose classes may have other names.
    let replaced = load(&of_file, &["data.class_weights={a = 1}", "data.class_weights={bad = 1, good = 4}"]);
    assert_eq!(replaced.data.class_weights, given(&[("bad", 1.0), ("good", 4.0)]));
    assert!(changed.to_toml().contains("class_weights = { \"no\" = 1.0, \"yes\" = 3.0 }"), "{}", changed.to_toml());
    // A recipe without them has the text, and so the hash, that it had before there were any.
    assert!(!load(LEAST, &[]).to_toml().contains("class_weights"));
    assert_ne!(load(&of_file, &[]).recipe_hash(), load(LEAST, &[]).recipe_hash());
    assert_ne!(load(&of_file, &[]).recipe_hash(), changed.recipe_hash());
}

#[test]
fn language_tasks_have_columns_lengths_and_a_metric_of_their_own() {
    let of_task = |task: &str| LEAST.replace("classification", task);
    let columns = |r: &Resolved| r.data.source.task_as::<LanguageModelingTask>().unwrap().columns.clone();
    let (language, seq2seq) = (of_task("language"), of_task("seq2seq"));
    let r = load(&language, &["data.columns.prompt=question", "train.label_smoothing=0.1"]);
    assert_eq!(columns(&r), LanguageModelingColumns::Language { text: "text".into(), prompt: Some("question".into()) });
    assert_eq!((r.eval.metric, r.data.source.task().name()), (EvalMetric::Loss, "language"));
    assert_eq!(load(&language, &["eval.metric=perplexity"]).eval.metric, EvalMetric::Metric(Metric::Perplexity));
    assert_eq!(columns(&load(&language, &[])), LanguageModelingColumns::Language { text: "text".into(), prompt: None });
    let r = load(&seq2seq, &["data.max_length=100", "data.columns.target=answer"]);
    assert_eq!(columns(&r), LanguageModelingColumns::Target { text: "text".into(), target: "answer".into() });
    assert_eq!((r.data.max_length, r.data.target_length), (100, 100));
    assert_eq!(load(&seq2seq, &["data.target_length=20"]).data.target_length, 20);
    for text in [&language, &seq2seq] {
        let first = load(text, &[]);
        assert_eq!(*load(&first.to_toml(), &[]), *first);
    }
    // Plain text: rows, not records.
    let r = load(&language, &["data.train=t.txt", "data.eval=e.txt", "data.max_length=64"]);
    assert_eq!(columns(&r), LanguageModelingColumns::Language { text: "text".into(), prompt: None });
    for (sets, reason) in [
        (&["data.train=t.txt", "data.columns.prompt=p"][..], "plain text has no columns"),
        (&["data.train=t.txt", "data.task=seq2seq"], "plain text has no columns, and this task needs them"),
        (&["data.format=text", "data.task=classification"], "plain text has no columns, and this task needs them"),
        (&["data.format=text", "data.columns.text=t"], "`data.columns.text` has no effect: plain text has no columns"),
        (&["data.format=text", "data.too_long=error"], "`data.too_long` has no effect"),
        (&["data.format=text", "data.length_grouped=true"], "`data.length_grouped` has no effect"),
        (&["data.format=text", "data.packing=true"], "`data.packing` has no effect"),
    ] {
        let found = mistakes(&language, sets);
        assert!(found.len() == 1 && found[0].reason.contains(reason), "{sets:?}: {found:?}");
    }
    for (text, set, reason) in [
        (&language, "data.columns.target=t", "`data.columns.target` has no effect: it is for task seq2seq"),
        (&language, "data.target_length=9", "`data.target_length` has no effect: it is for tasks seq2seq, sft and"),
        (&language, "data.labels=[\"a\", \"b\"]", "`data.labels` has no effect: the labels are the texts' own tokens"),
        (&language, "model.head=new", "`model.head` has no effect: a model keeps its language-modelling head"),
        (&language, "data.columns.prompt=text", "`data.columns.text` and `data.columns.prompt` both name the column"),
        (&seq2seq, "data.columns.target=text", "`data.columns.text` and `data.columns.target` both name the column"),
        (&seq2seq, "data.columns.prompt=p", "`data.columns.prompt` has no effect: it is for task language"),
        (&seq2seq, "data.columns.label=l", "`data.columns.label` has no effect: the labels are the texts' own tokens"),
        (&seq2seq, "eval.metric=accuracy", "judges classes, and task \"seq2seq\" has tokens for labels"),
        (&seq2seq, "data.train=t.bin", "the name of `data.train` does not determine the file's format"),
        (
            &of_task("regression"),
            "data.columns.prompt=p",
            "`data.columns.prompt` has no effect: it is for task language",
        ),
        (&LEAST.to_owned(), "eval.metric=perplexity", "judges tokens, and task \"classification\" has classes"),
    ] {
        let found = mistakes(text, &[set]);
        assert!(found.len() == 1 && found[0].reason.contains(reason), "{set}: {found:?}");
    }
}

#[test]
fn an_objective_decides_what_tells_classes_apart() {
    let task = |sets: &[&str]| load(LEAST, sets).data.source.clone();
    // Tasks that have only a verbalizer form do not need data.objective.
    let of_known = |further: &[&str]| {
        let text =
            LEAST.replace("task = \"classification\"\ntrain = \"t.jsonl\"\neval = \"e.jsonl\"\n", "path = \"sg\"\n");
        let is_named = further.iter().any(|set| set.starts_with("data.task"));
        load(&text, &[if is_named { &[][..] } else { &["data.task=RTE"] }, further].concat())
    };
    assert_eq!(of_known(&[]).data.source, of_directory(find_task("RTE", &[SUPERGLUE]).unwrap()));
    let of_prompts = |name: &str| of_directory(PROMPTS.iter().find(|entry| entry.name == name).unwrap());
    let prompts = of_known(&["data.objective=verbalizer", "train.prompt_loss=1"]);
    assert_eq!(prompts.data.source, of_prompts("RTE"));
    assert_eq!(prompts.train.prompt_loss, 1.0);
    let multirc = of_known(&["data.task=MultiRC", "eval.metric=exact_match"]);
    assert_eq!(multirc.data.source, of_prompts("MultiRC"));
    assert_eq!(multirc.data.source.files_of_task(), ["MultiRC/train.jsonl", "MultiRC/val.jsonl"]);
    assert_eq!(of_known(&["data.task=MultiRC"]).eval.metric, EvalMetric::Metric(Metric::F1));
    assert_eq!(of_known(&["data.task=LCQMC"]).data.source.files_of_task(), ["LCQMC/train.tsv", "LCQMC/dev.tsv"]);
    let squad = of_known(&["data.task=SQuAD", "data.target_length=32"]);
    assert_eq!((squad.eval.metric, squad.data.target_length), (EvalMetric::Metric(Metric::TokenF1), 32));
    assert_eq!(squad.data.source.files_of_task(), ["train-v1.1.json", "dev-v1.1.json"]);
    let own = task(&[
        "data.objective=verbalizer",
        "data.template=\"{text} Was it good?\"",
        "data.labels=[\"no\", \"yes\"]",
        "data.words=[\" No\", \" Yes\"]",
    ]);
    let task: &TemplateTask = own.task_as().unwrap();
    assert_eq!((task.template.to_string().as_str(), task.words[1].as_str()), ("{text} Was it good?", " Yes"));
    assert_eq!((own.task().name(), own.task().pipeline_tag(false)), ("classification", "text-generation"));
    // What is printed loads as it is.
    let text = of_known(&["data.objective=verbalizer"]).to_toml();
    assert_eq!(load(&text, &[]).recipe_hash(), of_known(&["data.objective=verbalizer"]).recipe_hash());
}
