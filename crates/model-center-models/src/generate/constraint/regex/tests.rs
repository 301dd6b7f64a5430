//! Expressions against Python's.

use super::*;

fn matches(pattern: &str, text: &str, is_search: bool) -> bool {
    let mut terms = Terms::new();
    let term = term(&mut terms, pattern, (Spelling::Plain, is_search)).unwrap();
    terms.accepts(term, text.as_bytes())
}

#[test]
fn expressions_match_as_pythons_do() {
    // Results of Python 3.11's re.fullmatch.
    for (pattern, yes, no) in [
        ("a|bc", &["a", "bc"][..], &["ac", "b", ""][..]),
        ("(?:ab)*c?", &["", "ababc", "c"], &["abcab", "aba"]),
        ("[a-cx]{2,3}", &["ax", "abc"], &["a", "abcd", "ad"]),
        (r"\d{4}-\d\d", &["2024-01"], &["2024-1", "٢٠٢٤-٠١"]),
        (r"^[^\d\s]+$", &["aé-", "\u{1F600}"], &["a1", "a b", "", "a٣"]),
        (r"\w+@\w+\.(com|org)", &["a_1@b.com"], &["a@b.net", "a@bcom"]),
        (r"a.c", &["abc", "aéc"], &["a\nc", "ac"]),
        (r"\x41\u00e9\t", &["Aé\t"], &["A\u{e9}"]),
        (r"a{2}", &["aa"], &["a", "aaa"]),
        (r"(?P<year>a)(?<b>c)*?", &["a", "acc"], &["b"]),
        (r"[\]\-a]+", &["]-a"], &["b"]),
        (r"[+-]?x", &["+x", "-x", "x"], &["+-x"]),
        (r"(?:a|)+b", &["aab", "b"], &["a"]),
        (r"\.\*\(\[\{\|", &[".*([{|"], &[""]),
        (r"\W\S\D", &["-aa", " -."], &["aaa", "- a", "--1", "--٣"]),
        ("Ä|日本語*", &["Ä", "日本", "日本語語"], &["日", "ä"]),
    ] {
        yes.iter().for_each(|text| assert!(matches(pattern, text, false), "{pattern} {text}"));
        no.iter().for_each(|text| assert!(!matches(pattern, text, false), "{pattern} {text}"));
    }
    for (pattern, yes, no) in [
        ("b", &["abc", "b"][..], &["ac", ""][..]),
        ("^a|c$", &["ab", "bc"], &["ba", "cb"]),
        ("^(?:a|b)+$", &["ab"], &["abc"]),
        ("(^a$)", &["a"], &["ab"]),
        ("", &["", "x"], &[]),
    ] {
        yes.iter().for_each(|text| assert!(matches(pattern, text, true), "{pattern} {text}"));
        no.iter().for_each(|text| assert!(!matches(pattern, text, true), "{pattern} {text}"));
    }
}

#[test]
fn what_is_not_supported_is_refused_with_a_reason() {
    let deep = format!("{}a{}", "(".repeat(100), ")".repeat(100));
    let long = "a".repeat(MAX_PATTERN + 1);
    for (pattern, reason) in [
        ("(?=a)", "lookahead"),
        ("(?<!a)b", "lookbehind"),
        (r"(a)\1", "references"),
        (r"\bword", "\\b"),
        (r"\p{L}", "Unicode"),
        ("(?i)a", "(?i"),
        ("a^b", "anchor"),
        ("(a", "not closed"),
        ("a)", "closes nothing"),
        ("[a", "not closed"),
        ("[b-a]", "range"),
        ("[[:alpha:]]", "has to be written"),
        ("a**", "repeated"),
        ("a{2}{3}", "repeated"),
        ("{2}", "brace"),
        ("a{2}+", "repeated"),
        ("*a", "repeats nothing"),
        ("a{3,2}", "more at least"),
        ("a{1000000}", "repetitions"),
        ("{", "brace"),
        ("a{,3}", "{0,3}"),
        (r"\q", "not known"),
        (r"\u12", "number of a character"),
        ("a\\", "at the end"),
        (&deep, "deep"),
        (&long, "bytes"),
    ] {
        let refused = term(&mut Terms::new(), pattern, (Spelling::Plain, false)).unwrap_err();
        assert!(refused.contains(reason), "{pattern:.40}: {refused}");
    }
}

#[test]
fn characters_of_json_strings_are_escaped_in_one_way() {
    let mut terms = Terms::new();
    let term = term(&mut terms, "[^a]\"\\\\\n", (Spelling::Json, false)).unwrap();
    for (text, is_in) in [
        (r#"b\"\\\n"#, true),
        (r#"\u0001\"\\\n"#, true),
        (r#"\t\"\\\n"#, true),
        (r#"\u0009\"\\\n"#, false),
        (r#"""\\\n"#, false),
    ] {
        assert_eq!(terms.accepts(term, text.as_bytes()), is_in, "{text}");
    }
}
