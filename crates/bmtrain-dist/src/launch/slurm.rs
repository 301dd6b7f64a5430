//! Slurm's compressed lists: tasks per node, `4(x2),3`, and hosts, `n[1-3,7],m05`.
//!
//! Pure parsers with bounds: a list from the environment cannot take more memory than [`MAX_RANKS`] entries. Called by
//! `launchers`.

/// No list is longer than this.
pub(super) const MAX_RANKS: usize = 1 << 16;

/// A port that all tasks of a step of a job agree on without talking, and two steps seldom share.
pub(super) fn port_of_step(job: u64, step: u64) -> u16 {
    let number = job.wrapping_mul(31).wrapping_add(step) % 20_000;
    20_000 + number as u16
}

/// `4(x2),3` is 4, 4, 3: tasks of each node, in the order of the nodes.
pub(super) fn tasks_per_node(text: &str) -> Result<Vec<usize>, String> {
    let mut tasks = Vec::new();
    for item in text.split(',') {
        let (count, times) = match item.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').ok_or_else(|| format!("`{item}` is not closed"))?),
            None => (item, "1"),
        };
        let number = |digits: &str| digits.parse::<usize>().map_err(|_| format!("`{digits}` is not a number"));
        let (count, times) = (number(count)?, number(times)?);
        if times == 0 || times > MAX_RANKS - tasks.len() {
            return Err(format!("`{item}` stands for no nodes or for more than {MAX_RANKS}"));
        }
        tasks.extend(std::iter::repeat_n(count, times));
    }
    Ok(tasks)
}

/// `n[1-3,7],m05` is n1, n2, n3, n7, m05. Several brackets in one name multiply, the last one fastest.
pub(super) fn hosts(text: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    let mut rest = text;
    loop {
        let (item, after) = split_item(rest)?;
        let names = expand(item)?;
        if names.len() > MAX_RANKS - hosts.len() {
            return Err(format!("more than {MAX_RANKS} hosts"));
        }
        hosts.extend(names);
        match after {
            Some(after) => rest = after,
            None => return Ok(hosts),
        }
    }
}

/// Up to the first comma outside brackets, and the rest after it.
fn split_item(text: &str) -> Result<(&str, Option<&str>), String> {
    let mut inside = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return Err(format!("brackets of `{text}` do not match")),
            ',' if !inside => return Ok((&text[..at], Some(&text[at + 1..]))),
            _ => {}
        }
    }
    if inside { Err(format!("brackets of `{text}` do not match")) } else { Ok((text, None)) }
}

/// All names of one item.
fn expand(item: &str) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((before, after)) = rest.split_once('[') {
        let (inside, behind) = after.split_once(']').ok_or_else(|| format!("`{item}` is not closed"))?;
        let numbers = numbers(inside, MAX_RANKS / names.len())?;
        names = names.iter().flat_map(|name| numbers.iter().map(move |n| format!("{name}{before}{n}"))).collect();
        rest = behind;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    if names.iter().any(String::is_empty) { Err("a host without a name".to_owned()) } else { Ok(names) }
}

/// `1-3,07` is 1, 2, 3, 07: leading zeros are kept, and as wide as the first number of a range are all of it.
fn numbers(inside: &str, most: usize) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for part in inside.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let parse = |digits: &str| match digits.parse::<u64>() {
            Ok(number) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Ok(number),
            _ => Err(format!("`{part}` is neither a number nor a range")),
        };
        let (from, to) = (parse(first)?, parse(last)?);
        if from > to || to - from >= (most - numbers.len()) as u64 {
            return Err(format!("range `{part}` runs backwards or is too long"));
        }
        numbers.extend((from..=to).map(|number| format!("{number:0width$}", width = first.len())));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_repeated_as_often_as_the_list_says() {
        assert_eq!(tasks_per_node("4").unwrap(), [4]);
        assert_eq!(tasks_per_node("4(x2)").unwrap(), [4, 4]);
        assert_eq!(tasks_per_node("4(x2),3,1(x3)").unwrap(), [4, 4, 3, 1, 1, 1]);
    }

    #[test]
    fn hosts_are_expanded_in_order_with_their_zeros() {
        assert_eq!(hosts("n[1-3,7],m05").unwrap(), ["n1", "n2", "n3", "n7", "m05"]);
        assert_eq!(hosts("gpu[008-011]").unwrap(), ["gpu008", "gpu009", "gpu010", "gpu011"]);
        assert_eq!(hosts("r[1-2]n[3,9]-ib").unwrap(), ["r1n3-ib", "r1n9-ib", "r2n3-ib", "r2n9-ib"]);
        assert_eq!(hosts("a,b.example.org,c[5]").unwrap(), ["a", "b.example.org", "c5"]);
    }

    #[test]
    fn broken_lists_are_refused() {
        for text in ["", "4(x", "4(x2", "x", "4(x0)", "4,,4", "-1", "4(x99999999)"] {
            assert!(tasks_per_node(text).is_err(), "{text}");
        }
        for text in ["", "n[1", "n1]", "n[[1]]", "n[3-1]", "n[a]", "n[]", "n[1-]", "n[+1]", "a,,b", "a,", "n[1-2"] {
            assert!(hosts(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lists_that_stand_for_too_much_are_refused_before_memory_is_taken() {
        for text in ["n[0-18446744073709551615]", "n[1-1000][1-1000]", "n[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]"] {
            assert!(hosts(text).is_err(), "{text}");
        }
        let many = ["n[1-60000]"; 3].join(",");
        assert!(hosts(&many).is_err());
        assert_eq!(hosts("n[1-65536]").unwrap().len(), MAX_RANKS);
        assert!(tasks_per_node(&["1(x60000)"; 3].join(",")).is_err());
    }
}
