//! Tests of numbers within bounds.

use super::*;
use serde_json::Value;

fn numbers(is_integer: bool, multiple: Option<u32>, bounds: [&[&str]; 2], exclusive: bool) -> Option<(Terms, Term)> {
    let mut terms = Terms::new();
    let json = Json::new(&mut terms);
    let [least, most] = bounds.map(|texts| {
        let bound = |text: &&str| match serde_json::from_str(text).unwrap() {
            Value::Number(number) => Bound::of(&number, exclusive).unwrap(),
            _ => panic!("{text}"),
        };
        texts.iter().map(bound).collect::<Vec<_>>()
    });
    let term = within(&mut terms, &json, (is_integer, multiple), (&least, &most)).ok()?;
    Some((terms, term))
}

#[test]
fn numbers_are_within_their_bounds() {
    let texts = [
        "0", "1", "2", "9", "10", "11", "12", "99", "100", "101", "1000", "-1", "-2", "-9", "-10", "-11", "-100",
        "0.5", "0.49", "0.50", "0.500", "0.51", "1.0", "1.5", "-0.5", "-0.25", "-1.5", "9.99", "10.01", "12.345",
        "12.3449", "12.3451", "12.34500", "-12.345", "-12.346",
    ];
    for (least, most) in [
        (Some("0"), Some("10")),
        (Some("-10"), Some("11")),
        (Some("0.5"), Some("12.345")),
        (Some("-12.345"), Some("-1.5")),
        (Some("10"), None),
        (None, Some("-1")),
        (Some("99"), Some("101")),
        (Some("1e2"), Some("1E3")),
        (None, None),
    ] {
        for (is_integer, exclusive) in [(false, false), (true, false), (false, true), (true, true)] {
            let bounds = [least.as_slice(), most.as_slice()];
            let Some((mut terms, term)) = numbers(is_integer, None, bounds, exclusive) else {
                panic!("{least:?} {most:?}")
            };
            for text in texts {
                let number: f64 = text.parse().unwrap();
                let above = least.is_none_or(|least| {
                    let least: f64 = least.parse().unwrap();
                    if exclusive { number > least } else { number >= least }
                });
                let below = most.is_none_or(|most| {
                    let most: f64 = most.parse().unwrap();
                    if exclusive { number < most } else { number <= most }
                });
                let expected = above && below && !(is_integer && text.contains('.'));
                let accepted = terms.accepts(term, text.as_bytes());
                assert_eq!(accepted, expected, "{text} in {least:?}..{most:?}, {is_integer} {exclusive}");
            }
            for wrong in ["-0", "-0.0", "01", "1e1", "", "-", "1.", "1234567890123456", "12345678.12345678"] {
                assert!(!terms.accepts(term, wrong.as_bytes()), "{wrong} in {least:?}..{most:?}");
            }
        }
    }
}

#[test]
fn multiples_and_empty_ranges() {
    let (mut terms, term) = numbers(true, Some(7), [&["-30"], &["30"]], false).unwrap();
    for number in -40..40 {
        let expected = (-30..=30).contains(&number) && number % 7 == 0;
        assert_eq!(terms.accepts(term, number.to_string().as_bytes()), expected, "{number}");
    }
    assert!(numbers(true, None, [&["3"], &["2"]], false).is_none());
    assert!(numbers(true, None, [&["3"], &["4"]], true).is_none());
    assert!(numbers(true, Some(7), [&["1"], &["6"]], false).is_none());
    assert!(Bound::of(&serde_json::Number::from(1_u64 << 60), false).is_none());
}
