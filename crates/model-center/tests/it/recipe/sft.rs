//! The keys of task `sft`.

use super::*;
use model_center::data::{DataClass, DataSet, Format, LossOn, RecordForm, SftTask};
use model_center::tokenizer::KeepSide;

fn task(resolved: &Resolved) -> &SftTask {
    resolved.data.source.task_as().unwrap()
}

/// Files take the place of `[[data.sets]]`.
fn of_files() -> String {
    LEAST.replace("classification", "sft")
}

fn of_sets(sets: &str) -> String {
    format!(
        "{}\n{sets}",
        of_files()
            .lines()
            .filter(|line| !line.starts_with("train =") && !line.starts_with("eval ="))
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    )
}

#[test]
fn files_are_one_data_set_with_the_usual_form_and_loss() {
    let resolved = load(&of_files(), &[]);
    let found = task(&resolved);
    assert_eq!((found.loss_on, found.keep, found.as_chat), (LossOn::Assistant, KeepSide::Start, false));
    let [set] = found.sets.as_slice() else { panic!("{:?}", found.sets) };
    assert_eq!((set.form, set.class, set.proportion), (None, None, 1.0));
    assert!(set.eval.is_some() && set.formats.is_plain());
    assert_eq!((resolved.data.source.task().name(), resolved.eval.metric), ("sft", EvalMetric::Loss));
    let sets = ["data.records=alpaca", "data.loss_on=last", "data.truncate=left", "data.columns.prompt=q"];
    let changed = load(&of_files(), &sets);
    let found = task(&changed);
    assert_eq!(
        (found.loss_on, found.keep, found.sets[0].form),
        (LossOn::Last, KeepSide::End, Some(RecordForm::Alpaca))
    );
    assert_eq!((found.columns.prompt.as_deref(), &found.columns.text), (Some("q"), &None));
    assert_eq!(*load(&changed.to_toml(), &[]), *changed);
    let separated = load(&of_files(), &["data.delimiter=;", "data.parse_special=true"]);
    assert_eq!((task(&separated).format, separated.data.parse_special), (Some(Format::Separated(';')), true));
    assert_eq!(*load(&separated.to_toml(), &[]), *separated);
}

#[test]
fn data_sets_are_kept_with_all_that_is_set_of_them() {
    let text = of_sets(
        "[[data.sets]]\npath = \"a.jsonl\"\neval = \"b.jsonl\"\nproportion = 3\nrecords = \"input-output\"\n\
         input_format = \"Q: __input__\\nA:\"\nmax_input_tokens = 20\nmax_output_tokens = 9\n\
         [[data.sets]]\nclass = \"debug\"\nconfig = { examples = 7, of = [\"a\", 1.5, true], in = { x = 1 } }\n",
    );
    let resolved = load(&text, &["data.output_format= __output__"]);
    let sets: &[DataSet] = &task(&resolved).sets;
    assert_eq!((sets[0].proportion, sets[0].form), (3.0, Some(RecordForm::InputOutput)));
    assert_eq!((sets[0].max_input_tokens, sets[0].max_output_tokens), (Some(20), Some(9)));
    assert_eq!(sets[0].formats.input_format, "Q: __input__\nA:");
    assert_eq!(sets[1].class.map(|class| class.name), Some("debug"));
    assert_eq!(
        serde_json::Value::from(sets[1].config.clone()).to_string(),
        r#"{"examples":7,"in":{"x":1},"of":["a",1.5,true]}"#
    );
    assert_eq!(*load(&resolved.to_toml(), &[]), *resolved);
    let on_a_line =
        load(&of_sets(""), &["data.sets=[{ path = \"a.jsonl\", proportion = 0.5 }, { path = \"b.jsonl\" }]"]);
    assert_eq!(task(&on_a_line).sets.iter().map(|set| set.proportion).collect::<Vec<_>>(), [0.5, 1.0]);
    assert_ne!(on_a_line.recipe_hash(), resolved.recipe_hash());
}

#[test]
fn a_class_of_a_program_is_known_to_its_recipes_alone() {
    static OWN: &[DataClass] = &[DataClass { name: "sums", doc: "Sums.", has_split: |_, _| true, read: |_, _| Ok(()) }];
    let sets = ["data.task=sft", "model.path=m", "output.dir=o", "train.steps=1", "data.sets=[{ class = \"sums\" }]"];
    let sets = sets.map(String::from);
    let error = Recipe::read(None, &sets).unwrap_err().remove(0).to_string();
    assert!(
        error.contains("`data.sets` must be a list of tables with path or class (records, sst2, alpaca"),
        "{error}"
    );
    let resolved = Recipe::draft(None, &sets, OwnData { tasks: &[], classes: OWN }).unwrap().resolved().unwrap();
    assert_eq!(task(&resolved).sets[0].class, Some(&OWN[0]));
    const SST2: DataClass = DataClass { name: "sst2", doc: "", has_split: |_, _| true, read: |_, _| Ok(()) };
    static TWICE: &[DataClass] = &[SST2];
    let draft = Recipe::draft(None, &sets[..4], OwnData { tasks: &[], classes: TWICE }).unwrap();
    let found = list(&draft.resolved().unwrap_err());
    assert!(found.contains("two classes of data of this program have the name sst2"), "{found}");
}

#[test]
fn settings_that_do_not_go_together_are_mistakes() {
    let two = "[[data.sets]]\npath = \"a.jsonl\"\n[[data.sets]]\npath = \"b.jsonl\"\n";
    for (text, sets, reason) in [
        (of_files(), &["data.sets=[{ path = \"a\" }]"][..], "both name the training data"),
        (of_sets(""), &[], "`data.train` is missing"),
        (of_sets(two), &["data.eval=e.jsonl"], "each set of data.sets names its own evaluation data"),
        (of_sets(two), &["data.shuffle=false"], "mixed in a random order"),
        (of_files(), &["data.format=text"], "plain text has no columns"),
        (of_files(), &["data.input_format=Q:"], "has no __input__"),
        (of_files(), &["data.labels=[\"a\", \"b\"]"], "`data.labels` has no effect"),
        (of_files(), &["data.columns.tags=x"], "`data.columns.tags` has no effect"),
        (LEAST.to_owned(), &["data.loss_on=all"], "`data.loss_on` has no effect: it is for tasks sft"),
        (LEAST.to_owned(), &["data.sets=[{ path = \"a\" }]"], "`data.sets` has no effect"),
        (of_files(), &["data.parse_special=true", "data.as_chat=true"], "is for rendered texts"),
        (of_files(), &["data.delimiter=;;"], "is not one character that separates columns"),
        (of_files(), &["data.delimiter=;", "data.format=jsonl"], "the files have another format"),
        (
            of_sets("[[data.sets]]\npath = \"a\"\nmax_input_tokens = 3\n"),
            &["data.as_chat=true"],
            "`data.as_chat` makes turns of them",
        ),
        (LEAST.to_owned(), &["data.parse_special=true"], "`data.parse_special` has no effect"),
        (of_sets("[[data.sets]]\npath = \"a\"\nproportion = 0\n"), &[], "`data.sets` must be a list of tables"),
        (of_sets("[[data.sets]]\npath = \"a\"\nweight = 1\n"), &[], "`data.sets` must be a list of tables"),
    ] {
        let found = mistakes(&text, sets);
        assert!(found.iter().any(|mistake| mistake.to_string().contains(reason)), "{sets:?}: {}", list(&found));
    }
}
