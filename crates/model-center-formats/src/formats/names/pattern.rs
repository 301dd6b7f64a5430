//! Patterns of names: `encoder.layers.{i}.qkv.weight`, `layer.{i}.self.{query|key|value}.weight`, `cls.*`.

#[derive(Debug, PartialEq, Eq)]
enum Segment<'a> {
    Literal(&'a str),
    /// `{i}`: a number without leading zeros; on their side `{i+1}` is the next one.
    Number(&'a str),
    /// `{query|key|value}`: the parts, in order.
    Parts(Vec<&'a str>),
}

fn segments(pattern: &str) -> Vec<Segment<'_>> {
    let mut out = Vec::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((inside, after)) = after.split_once('}') else { break };
        if !before.is_empty() {
            out.push(Segment::Literal(before));
        }
        out.push(if inside.contains('|') {
            Segment::Parts(inside.split('|').collect())
        } else {
            Segment::Number(inside)
        });
        rest = after;
    }
    if !rest.is_empty() {
        out.push(Segment::Literal(rest));
    }
    out
}

/// The numbers that `name` has in the places of the pattern, with the places' names; `None` if it does not match.
pub(super) fn match_name<'p, 'n>(pattern: &'p str, name: &'n str) -> Option<Vec<(&'p str, &'n str)>> {
    let mut numbers = Vec::new();
    let mut rest = name;
    for segment in segments(pattern) {
        match segment {
            Segment::Literal(text) => rest = rest.strip_prefix(text)?,
            Segment::Number(place) => {
                let length = rest.bytes().take_while(u8::is_ascii_digit).count();
                let (number, after) = rest.split_at(length);
                if number.is_empty() || (number.len() > 1 && number.starts_with('0')) {
                    return None;
                }
                numbers.push((place, number));
                rest = after;
            }
            Segment::Parts(_) => return None,
        }
    }
    rest.is_empty().then_some(numbers)
}

/// The names that a pattern stands for, one for each of its parts in order; `None` if a number is not among `numbers`
/// or there are two lists of parts.
pub(super) fn expand(pattern: &str, numbers: &[(&str, &str)]) -> Option<Vec<String>> {
    let mut names = vec![String::new()];
    for segment in segments(pattern) {
        match segment {
            Segment::Literal(text) => names.iter_mut().for_each(|name| name.push_str(text)),
            Segment::Number(place) => {
                let (place, more) = place.strip_suffix("+1").map_or((place, 0), |place| (place, 1));
                let (_, number) = numbers.iter().find(|(known, _)| *known == place)?;
                let number = number.parse::<usize>().ok()?.checked_add(more)?;
                names.iter_mut().for_each(|name| name.push_str(&number.to_string()));
            }
            Segment::Parts(parts) => {
                let [stem] = names.as_slice() else { return None };
                names = parts.iter().map(|part| format!("{stem}{part}")).collect();
            }
        }
    }
    Some(names)
}

/// Whether `name` matches a pattern in which `*` stands for any text, also none.
pub(super) fn glob(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let Some(mut rest) = pieces.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut last = None;
    for piece in pieces {
        if let Some(middle) = last.replace(piece) {
            // The leftmost place is as good as any: what follows starts with a star again.
            let Some(at) = rest.find(middle) else { return false };
            rest = &rest[at + middle.len()..];
        }
    }
    match last {
        Some(end) => rest.ends_with(end),
        None => rest.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_bound_and_substituted_into_all_parts() {
        let bound = match_name("e.{i}.x.{j}.w", "e.12.x.0.w").unwrap();
        assert_eq!(bound, [("i", "12"), ("j", "0")]);
        assert_eq!(expand("l.{j}.{q|k}.{i}", &bound).unwrap(), ["l.0.q.12", "l.0.k.12"]);
        assert_eq!(expand("l.{i+1}.{j+1}.{k|v}", &bound).unwrap(), ["l.13.1.k", "l.13.1.v"]);
        assert_eq!(expand("l.{z}", &bound), None);
        assert_eq!(expand("{a|b}{c|d}", &bound), None);
        for name in ["e..x.0.w", "e.01.x.0.w", "e.1.x.0.w2", "e.1.x.0", "f.1.x.0.w", "e.-1.x.0.w"] {
            assert_eq!(match_name("e.{i}.x.{j}.w", name), None, "{name}");
        }
    }

    #[test]
    fn a_star_matches_any_text() {
        for (pattern, name, want) in [
            ("cls.*", "cls.predictions.bias", true),
            ("cls.*", "cls", false),
            ("*.bias", "a.bias", true),
            ("*.bias", "a.bias.x", false),
            ("h.*.attn.*", "h.0.attn.bias", true),
            ("h.*.attn.bias", "h.0.attn.c_attn.bias", false),
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("a*a", "a", false),
            ("a*b*a", "aba", true),
        ] {
            assert_eq!(glob(pattern, name), want, "{pattern} {name}");
        }
    }
}
