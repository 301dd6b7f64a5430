//! Tests of the depth of templates.

use super::*;

fn levels(template: &str) -> (usize, usize) {
    let mut scan = Scan { source: template.as_bytes(), ..Scan::default() };
    scan.template();
    (scan.expression.levels, scan.conditions.levels)
}

#[test]
fn every_link_of_a_chain_and_every_bracket_is_a_level() {
    for (expression, expected) in [
        ("a", 0),
        ("a + b - c ~ d", 3),
        ("a ** b // c % d * e / f", 5),
        ("not not a and b or - c", 5),
        ("a == b != c <= d >= e < f > g in h", 7),
        ("a is not none", 2),
        ("a if b else c", 2),
        ("a|b|c", 2),
        ("a.b.c.d", 3),
        ("a[0][1:2]", 2),
        ("a()()", 2),
        ("1or 2or 3", 2),
        ("0x1or 1e5or 2.5if 3", 4),
        // Side by side is not one in another; the deepest counts.
        ("[a, b, c, d, e]", 1),
        ("f(a + b, c + d, e + f)", 2),
        ("(a + b) + (c + d)", 4),
        ("[a + b + c, {'k': (d)}] + e", 4),
        ("'a + b' ~ \"c \\\" | d\" ~ 'e\\\\'", 2),
    ] {
        assert_eq!(levels(&format!("{{{{ {expression} }}}}")).0, expected, "{expression}");
        assert_eq!(levels(&format!("{{% set x = {expression} %}}")).0, expected + 1, "{expression}");
    }
    assert_eq!(levels(&format!("{{{{ {} }}}}", "(".repeat(9))).0, 9, "brackets that stay open count");
}

#[test]
fn text_comments_raw_blocks_and_other_tags_add_nothing() {
    for text in [
        "a + b | c {not} { { %}",
        "{# a + b {{ c + d }} #}",
        "{#- a + b -#}",
        "{% raw %}{{ a + b }}{% endraw %}",
        "{%- raw -%}{{ a + b }}{% if %}{%+ endraw -%}",
        "{{ a }}{{ b }}{{- c -}}",
        "{% if a %}{% endif %}{% if b %}{% endif %}",
        "{{ '}} + {{' }}{{ {} }}",
    ] {
        assert!(levels(text) <= (1, 0), "{text}: {:?}", levels(text));
    }
    // What ends neither a comment nor a raw block.
    assert_eq!(levels("{#}{{ a + b }}").0, 0);
    assert_eq!(levels("{% raw %}{% endrawx %}{{ a + b }}").0, 0);
    assert_eq!(levels("{% raw x %}{{ a + b }}").0, 1);
}

#[test]
fn branches_count_along_the_conditions_that_are_open() {
    let chain = "{% if a %}{% elif b %}{% elif c %}{% else %}{% endif %}";
    assert_eq!(levels(chain).1, 2);
    assert_eq!(levels(&chain.repeat(3)).1, 2);
    assert_eq!(levels(&format!("{{% if a %}}{{% elif b %}}{chain}{{% endif %}}")).1, 3);
    assert_eq!(levels("{%-elif a%}{% endif %}{% 'elif' %}").1, 0);
}

#[test]
fn the_line_is_that_of_the_tag_or_of_its_if() {
    let sum = format!("a\n\n{{{{ 1\n{} }}}}", " + 1\n".repeat(MAX_LEVELS + 1));
    let error = check("x.jinja", &sum).unwrap_err().to_string();
    assert!(error.contains("x.jinja, line 3 of") && error.contains("501 levels") && error.contains("500"), "{error}");
    let branches = format!("\n{{% if a %}}{}", "\n{% elif b %}".repeat(MAX_LEVELS + 1));
    let error = check("x.jinja", &branches).unwrap_err().to_string();
    assert!(error.contains("x.jinja, line 2 of") && error.contains("501 levels"), "{error}");
    check("x.jinja", &sum.replacen(" + 1", "", 1)).unwrap();
    check("x.jinja", &branches.replacen("{% elif b %}", "", 1)).unwrap();
}
