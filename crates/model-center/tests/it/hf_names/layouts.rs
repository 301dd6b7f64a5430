//! Fused projections whose parts are unequal, interleaved or in pairs, and transposed matrices.

use super::{check, export_all, load, read_all, value};
use bmtrain_core::dtype::DType;
use model_center::formats::{Allow, NameTable, ParamShape, Rule, Weights};
use std::borrow::Cow;

#[test]
fn parts_may_be_of_unequal_size_and_matrices_transposed() {
    let table = NameTable {
        base_prefix: "",
        rules: Cow::Owned(vec![
            Rule::new("qkv.weight", "{q|k|v}.weight").rows(vec![8, 2, 2]),
            Rule::new("c_attn.weight", "h.attn.weight").transposed(),
            Rule::owned("both.weight".into(), "{a|b}.t".into()).rows(vec![50, 20]).transposed(),
        ]),
        aliases: Cow::Borrowed(&[]),
        ignored: Cow::Borrowed(&[]),
        old_names: Cow::Borrowed(&[]),
    };
    let params = [
        ParamShape::new("qkv.weight", [12, 3]),
        ParamShape::new("c_attn.weight", [45, 67]),
        ParamShape::new("both.weight", [70, 33]),
    ];
    let dir = tempfile::tempdir().unwrap();
    export_all(&table, &params, dir.path(), DType::F32, true, u64::MAX);
    let weights = Weights::open(dir.path()).unwrap();
    let tensors = read_all(&weights);
    assert_eq!((&tensors["q.weight"].0, &tensors["k.weight"].0), (&vec![8, 3], &vec![2, 3]));
    let (shape, theirs) = &tensors["h.attn.weight"];
    assert_eq!(*shape, [67, 45]);
    for (r, c) in [(0, 0), (44, 66), (13, 40), (40, 13)] {
        assert_eq!(theirs[c * 45 + r], value("c_attn.weight", r * 67 + c));
    }
    assert_eq!((&tensors["a.t"].0, &tensors["b.t"].0), (&vec![33, 50], &vec![33, 20]));
    check(&params, &load(&table, &params, &weights, &Allow::default()));
}

#[test]
fn parts_of_one_tensor_may_be_interleaved() {
    let parts = |groups| Rule::new("qkv.{i}", "h.{i}.fused").rows(vec![8, 4, 4]).interleaved(groups);
    let table = |rule| NameTable {
        base_prefix: "",
        rules: Cow::Owned(vec![rule]),
        aliases: Cow::Borrowed(&[]),
        ignored: Cow::Borrowed(&[]),
        old_names: Cow::Borrowed(&[]),
    };
    let interleaved = table(parts(2));
    // A matrix and a bias.
    let params = [ParamShape::new("qkv.0", [16, 3]), ParamShape::new("qkv.1", [16])];
    let dir = tempfile::tempdir().unwrap();
    export_all(&interleaved, &params, dir.path(), DType::F32, true, u64::MAX);
    let weights = Weights::open(dir.path()).unwrap();
    let tensors = read_all(&weights);
    assert_eq!((&tensors["h.0.fused"].0, &tensors["h.1.fused"].0), (&vec![16, 3], &vec![16]));
    // Half of the queries, of the keys, of the values; then the other halves.
    let rows = [0, 1, 2, 3, 8, 9, 12, 13, 4, 5, 6, 7, 10, 11, 14, 15];
    for (theirs, ours) in rows.into_iter().enumerate() {
        assert_eq!(tensors["h.1.fused"].1[theirs], value("qkv.1", ours));
        for column in 0..3 {
            assert_eq!(tensors["h.0.fused"].1[3 * theirs + column], value("qkv.0", 3 * ours + column));
        }
    }
    check(&params, &load(&interleaved, &params, &weights, &Allow::default()));

    for rule in [
        parts(3),
        parts(0),
        parts(2).transposed(),
        parts(2).rows(vec![8, 4, 2]),
        parts(2).rows(vec![usize::MAX - 1, 18]),
        Rule::new("qkv.{i}", "h.{i}.{q|k}").rows(vec![8, 8]).interleaved(2),
    ] {
        let error = table(rule).pieces("qkv.0", &[16, 3], true).unwrap_err().to_string();
        assert!(error.contains("cannot be interleaved"), "{error}");
    }
}

#[test]
fn rows_of_query_and_key_heads_may_be_in_pairs() {
    let rule = |head| Rule::new("qkv.{i}", "h.{i}.{q|k|v}").rows(vec![16, 8, 8]).paired(head);
    let table = |rule| NameTable { rules: Cow::Owned(vec![rule]), ..NameTable::default() };
    let params = [ParamShape::new("qkv.0", [32, 3]), ParamShape::new("qkv.1", [32])];
    let dir = tempfile::tempdir().unwrap();
    export_all(&table(rule(8)), &params, dir.path(), DType::F32, true, u64::MAX);
    let weights = Weights::open(dir.path()).unwrap();
    let tensors = read_all(&weights);
    // Two heads of queries, one of keys; values are as they are.
    let pairs = [0, 4, 1, 5, 2, 6, 3, 7];
    let second = pairs.map(|row| row + 8);
    let of_keys = pairs.map(|row| row + 16);
    let values: Vec<usize> = (24..32).collect();
    for (name, rows) in [("q", [pairs, second].concat()), ("k", of_keys.to_vec()), ("v", values)] {
        for (theirs, ours) in rows.into_iter().enumerate() {
            assert_eq!(tensors[&format!("h.1.{name}")].1[theirs], value("qkv.1", ours), "{name}");
            for column in 0..3 {
                let found = tensors[&format!("h.0.{name}")].1[3 * theirs + column];
                assert_eq!(found, value("qkv.0", 3 * ours + column), "{name}");
            }
        }
    }
    check(&params, &load(&table(rule(8)), &params, &weights, &Allow::default()));
    for head in [0, 3, 6] {
        let error = table(rule(head)).pieces("qkv.0", &[32, 3], true).unwrap_err().to_string();
        assert!(error.contains("have no heads of"), "{error}");
    }
}
