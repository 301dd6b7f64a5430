//! Turns that a record excludes from the loss.

use super::{SAME, of, refused, turns};
use model_center::data::{LossOn, SftTask};
use serde_json::{Value, json};

fn marked(name: &str, first: Value, second: Value) -> Value {
    let mut messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]);
    messages[1][name] = first;
    messages[3][name] = second;
    json!({"messages": messages})
}

#[test]
fn turns_that_a_record_excludes_are_read_and_not_learned() {
    let all = turns(&[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]);
    for (record, learned) in [
        (marked("weight", json!(0), json!(1)), vec!["d<|im_end|>"]),
        (marked("weight", json!(1.0), json!(0.0)), vec!["b<|im_end|>"]),
        (marked("train", json!(false), json!(true)), vec!["d<|im_end|>"]),
        (marked("train", json!(null), json!(false)), vec!["b<|im_end|>"]),
        (marked("loss", json!(true), json!(true)), vec!["b<|im_end|>", "d<|im_end|>"]),
    ] {
        assert_eq!(of(&record, SAME), (all.clone(), learned.iter().map(ToString::to_string).collect()), "{record}");
    }
    // All tokens are learned but the turn's.
    let everything = |task: &mut SftTask| task.loss_on = LossOn::All;
    let (text, learned) = of(&marked("weight", json!(0), json!(1)), &everything);
    assert_eq!((text, learned.join("…")), (all.clone(), all.replacen("b<|im_end|>", "…", 1)));
    let last = |task: &mut SftTask| task.loss_on = LossOn::Last;
    assert_eq!(of(&marked("weight", json!(0), json!(1)), &last).1, ["d<|im_end|>"]);
    for (record, change, reason) in [
        (marked("weight", json!(1), json!(0)), &last as &dyn Fn(&mut SftTask), "every turn that data.loss_on selects"),
        (marked("weight", json!(0), json!(0)), SAME, "excludes all of the assistant's"),
        (marked("weight", json!(0.5), json!(1)), SAME, "message 2 of \"messages\" has \"weight\" 0.5"),
        (marked("train", json!("no"), json!(1)), SAME, "has \"train\" \"no\""),
        (marked("train_detail", json!([{"begin_offset": 0}]), json!(null)), SAME, "has \"train_detail\""),
    ] {
        let error = refused(&record, change);
        assert!(error.contains(reason), "{record}: {error}");
    }
    let mut both = marked("weight", json!(0), json!(1));
    both["messages"][1]["train"] = json!(true);
    assert!(refused(&both, SAME).contains("the opposite"));
    let mut of_user = marked("weight", json!(0), json!(1));
    of_user["messages"][0]["weight"] = json!(1);
    assert!(refused(&of_user, SAME).contains("turns of the assistant alone"));
    of_user["messages"][0]["weight"] = json!(0);
    assert_eq!(of(&of_user, SAME).1, ["d<|im_end|>"]);
}
