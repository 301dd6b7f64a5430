//! The keys of task `embedding`.

use super::*;
use model_center::contrastive::ContrastiveLoss;
use model_center::data::EmbeddingTask;

fn of_task() -> String {
    LEAST.replace("classification", "embedding")
}

#[test]
fn samples_are_pairs_or_triplets_with_a_temperature() {
    let resolved = load(&of_task(), &[]);
    assert_eq!(resolved.contrastive, Some(ContrastiveLoss { temperature: 0.05 }));
    assert_eq!(resolved.eval.metric, EvalMetric::Metric(Metric::MeanReciprocalRank));
    assert_eq!(resolved.data.source.task().name(), "embedding");
    let sets = ["embedding.temperature=0.1", "data.columns.anchor=q", "data.columns.negative=hard", "eval.metric=loss"];
    let triplets = load(&of_task(), &sets);
    let task: &EmbeddingTask = triplets.data.source.task_as().unwrap();
    let columns = |anchor: &str, negative: &str| EmbeddingTask {
        anchor: anchor.to_owned(),
        positive: "positive".to_owned(),
        negative: Some(negative.to_owned()),
        format: None,
    };
    assert_eq!(*task, columns("q", "hard"));
    assert_eq!(triplets.contrastive, Some(ContrastiveLoss { temperature: 0.1 }));
    assert_eq!(*load(&triplets.to_toml(), &[]), *triplets);
    assert_ne!(triplets.recipe_hash(), resolved.recipe_hash());
    assert_eq!(load(LEAST, &[]).contrastive, None);
}

#[test]
fn contradictions_and_settings_without_effect_are_named() {
    let embedding = of_task();
    for (text, sets, expected) in [
        (LEAST, &["embedding.temperature=0.1"][..], "it is for task embedding"),
        (LEAST, &["data.columns.negative=hard"], "it is for task embedding"),
        (&embedding, &["embedding.temperature=0"], "must be a number above 0"),
        (&embedding, &["data.columns.text=a"], "the task has other columns"),
        (&embedding, &["data.columns.positive=anchor"], "data.columns.anchor"),
        (&embedding, &["data.labels=[\"a\", \"b\"]"], "texts have no labels"),
        (&embedding, &["data.class_weights=balanced"], "it is for tasks with classes"),
        (&embedding, &["model.head=new"], "embeddings are made of hidden states"),
        (&embedding, &["train.label_smoothing=0.1"], "texts are no classes"),
        (&embedding, &["data.packing=true"], "it is for tasks language and sft"),
        (&embedding, &["parallel.pipeline=2"], "embeddings are not compared over pipeline stages"),
        (&embedding, &["adapter.method=prompt"], "virtual tokens are no part of the texts"),
        (&embedding, &["adapter.method=prompt", "adapter.path=a"], "virtual tokens are no part of the texts"),
        (&embedding, &["eval.metric=f1"], "use \"mean_reciprocal_rank\" or \"loss\""),
        (LEAST, &["data.task=sentence-similarity"], "data.task = \"embedding\""),
    ] {
        let found: Vec<String> = mistakes(text, sets).iter().map(ToString::to_string).collect();
        let found = found.join("\n");
        assert!(found.contains(expected), "{sets:?}: {found}");
    }
}
