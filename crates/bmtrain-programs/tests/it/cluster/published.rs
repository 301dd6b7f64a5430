//! Training steps in time: arithmetic, bubbles and communication of a machine described by numbers, and its files.

use bmtrain_dist::pipeline::{Link, ScheduleKind};
use bmtrain_dist::shard::ZeroLevel;
use bmtrain_programs::cluster::{Machine, Scenario, StepReport, simulate};
use model_center::formula::{ParallelLayout, TransformerSizes};
use std::path::Path;

/// A rank does one operation a second at best, and links take no time.
fn free() -> Machine {
    Machine {
        name: "free".into(),
        flops: 2.0,
        efficiency: 0.5,
        ranks_per_host: 8,
        inside: Link::FREE,
        between: Link::FREE,
        optimizer_bandwidth: f64::INFINITY,
    }
}

fn sizes() -> TransformerSizes {
    // The head takes nothing to speak of.
    TransformerSizes::gpt2(8, 64, 8, 1, 32)
}

fn solo() -> ParallelLayout {
    ParallelLayout { length: 32, micro_batch: 1, recompute: false, ..super::solo() }
}

fn step(layout: &ParallelLayout, machine: &Machine) -> StepReport {
    simulate(&sizes(), layout, machine, "here").unwrap()
}

fn is_near(one: f64, other: f64, tolerance: f64) -> bool {
    (one / other - 1.0).abs() <= tolerance
}

#[test]
fn one_rank_takes_the_time_of_its_arithmetic() {
    let report = step(&solo(), &free());
    // Sums in another order than the engine's: equal to rounding.
    assert!(is_near(report.step, sizes().training_flops(32) * 8.0 * 32.0, 1e-12), "{}", report.step);
    assert!(is_near(report.utilisation, 0.5, 1e-12) && report.bubble == 0.0);
    assert_eq!((report.exposed.tensor, report.exposed.pipeline, report.exposed.data), (0.0, 0.0, 0.0));
    let again = step(&ParallelLayout { recompute: true, ..solo() }, &free());
    // A third more arithmetic, but for the head.
    assert!(is_near(again.step, report.step * 4.0 / 3.0, 1e-4), "{}", again.step / report.step);
    assert!(is_near(again.hardware_flops, report.hardware_flops, 1e-12));
}

#[test]
fn ranks_over_free_links_divide_the_time_but_for_the_bubble() {
    let one = step(&solo(), &free()).step;
    assert!(is_near(step(&ParallelLayout { tensor: 4, ..solo() }, &free()).step, one / 4.0, 1e-12));
    assert!(is_near(step(&ParallelLayout { data: 4, ..solo() }, &free()).step, one, 1e-12));
    let staged = step(&ParallelLayout { pipeline: 4, ..solo() }, &free());
    // Attention has no gradients of weights, and the head is on one stage alone: nearly equal work.
    assert!(is_near(staged.step, one / 4.0 * (1.0 + 3.0 / 8.0), 1e-2), "{}", staged.step / one);
    assert!(is_near(staged.bubble, 3.0 / 8.0, 2e-2), "{}", staged.bubble);
}

#[test]
fn an_all_reduce_is_exposed_in_full_and_a_gather_only_as_far_as_it_is_longer() {
    let slow = Machine { inside: Link::new(0.0, 1e-3).unwrap(), ..free() };
    let layout = ParallelLayout { tensor: 2, ..solo() };
    let report = step(&layout, &slow);
    // Two all-reduces a block forward and two backward, each of half the hidden states in both of its halves.
    let reduces = 8.0 * 8.0 * 4.0 * (32.0 * 64.0 * 2.0) / 1e-3;
    assert!(is_near(report.exposed.tensor, reduces, 1e-9), "{}", report.exposed.tensor / reduces);
    let overlapped = step(&ParallelLayout { overlap_tensor: true, ..layout }, &slow);
    assert!(overlapped.step < report.step && overlapped.exposed.tensor > 0.0);
    let sharded = ParallelLayout { data: 2, zero: ZeroLevel::Three, ..solo() };
    let exposed = |layout: &ParallelLayout, bandwidth: f64| {
        let machine = Machine { inside: Link::new(0.0, bandwidth).unwrap(), ..free() };
        step(layout, &machine).exposed.data
    };
    let (fast, slow) = (exposed(&sharded, 1e4), exposed(&sharded, 1e-4));
    let unhidden = exposed(&ParallelLayout { overlap: false, ..sharded }, 1e4);
    assert!(fast < 0.2 * unhidden && slow > 1e4 * unhidden, "{fast} {unhidden} {slow}");
}

#[test]
fn groups_on_one_host_use_its_links_and_groups_on_several_the_network() {
    let machine = Machine { between: Link::new(0.0, 1.0).unwrap(), ..free() };
    let exposed = |ranks_per_host| {
        let report =
            step(&ParallelLayout { tensor: 4, data: 2, ..solo() }, &Machine { ranks_per_host, ..machine.clone() });
        (report.exposed.tensor > 0.0, report.exposed.data > 0.0)
    };
    assert_eq!(exposed(8), (false, false));
    assert_eq!(exposed(4), (false, true));
    assert_eq!(exposed(2), (true, true));
}

#[test]
fn zero_bubble_schedules_are_faster_where_messages_are_cheap() {
    let kinds = [
        (ScheduleKind::GPipe, 1),
        (ScheduleKind::Interleaved, 2),
        (ScheduleKind::ZeroBubble, 1),
        (ScheduleKind::ZeroBubbleV, 2),
    ];
    let bubbles = kinds
        .map(|(schedule, chunks)| step(&ParallelLayout { pipeline: 4, schedule, chunks, ..solo() }, &free()).bubble);
    assert!(bubbles.windows(2).all(|pair| pair[1] < pair[0]), "{bubbles:?}");
}

#[test]
fn the_shipped_tables_are_near_what_was_published() {
    // Each file has one efficiency for all of its models. Products of narrow models and of more tensor-parallel ranks
    // reach less, of wide models more; this is by how much the farthest row is off.
    let files = [("bmtrain_13b", 0.05), ("megatron_8b", 0.16), ("megatron_2021", 0.2), ("megatron_2024", 0.23)];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/parallelism.md")).unwrap();
    for (name, tolerance) in files {
        let scenario = Scenario::read(&root.join(format!("examples/simulate/{name}.toml"))).unwrap();
        let first = scenario.simulate(&scenario.runs[0]).unwrap();
        let shown = simulated_column(&page, name);
        assert_eq!(shown.len(), scenario.runs.len(), "{name}: rows of the table in docs/parallelism.md");
        for (run, shown) in scenario.runs.iter().zip(shown) {
            let report = scenario.simulate(run).unwrap();
            let published = run.published.unwrap();
            let simulated = published.of.of(&report, &first);
            assert!(is_near(simulated, published.value, tolerance), "{name}, {}: {simulated}", run.name);
            let decimals = shown.split_once('.').map_or(0, |(_, decimals)| decimals.len());
            assert_eq!(format!("{simulated:.decimals$}"), shown, "{name}, {}: docs/parallelism.md", run.name);
        }
    }
}

/// The cells under the heading `simulated` of a file's table.
fn simulated_column<'p>(page: &'p str, name: &str) -> Vec<&'p str> {
    let of_file = page.split_once(&format!("`{name}.toml`:")).unwrap().1;
    let rows = of_file.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells: Vec<Vec<&str>> = rows.map(|row| row.split('|').map(str::trim).collect()).collect();
    let column = cells[0].iter().position(|cell| *cell == "simulated").unwrap();
    cells[2..].iter().map(|row| row[column]).collect()
}

#[test]
fn blocks_and_widths_of_the_table_of_2021_have_the_parameters_that_name_its_rows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/simulate/megatron_2021.toml");
    for run in Scenario::read(&path).unwrap().runs {
        let (number, unit) = run.name.split_once(' ').unwrap();
        let parameters = number.parse::<f64>().unwrap() * if unit == "T" { 1e12 } else { 1e9 };
        // Names have two or three digits.
        assert!(is_near(run.sizes.parameters(), parameters, 0.03), "{}: {}", run.name, run.sizes.parameters());
    }
}

#[test]
fn malformed_files_are_refused_with_the_place() {
    let machine = "[machine]\nname = \"m\"\nflops = 1e12\nefficiency = 0.5\nranks_per_host = 8\n\
                   inside = { latency = 0.0, bandwidth = 1e9 }\nbetween = { latency = 0.0, bandwidth = 1e9 }\n";
    let run = "[[run]]\nname = \"r\"\nlayers = 4\nwidth = 8\nheads = 2\nvocabulary = 10\nlength = 4\nmicro_batch = 1\n";
    assert_eq!(Scenario::parse(&format!("{machine}{run}"), "here").unwrap().runs.len(), 1);
    let cases = [
        (machine.to_owned(), "here"),
        (run.to_owned(), "machine"),
        (format!("{machine}{run}speed = 1\n"), "speed"),
        (format!("{machine}extra = 1\n{run}"), "extra"),
        (format!("{}{run}", machine.replace("1e12", "-1.0")), "machine.flops"),
        (format!("{}{run}", machine.replace("1e12", "nan")), "machine.flops"),
        (format!("{}{run}", machine.replace("0.5", "1.5")), "machine.efficiency"),
        (format!("{}{run}", machine.replace("bandwidth = 1e9", "bandwidth = 0.0")), "machine.inside"),
        (format!("{machine}{}", run.replace("layers = 4", "layers = 0")), "run 1, layers"),
        (format!("{machine}{}", run.replace("layers = 4", "layers = -4")), "run 1"),
        (format!("{machine}{run}tensor = 9\n"), "run 1, heads"),
        (format!("{machine}{run}pipeline = 3\n"), "run 1, layers"),
        (format!("{machine}{run}zero = 4\n"), "run 1, zero"),
        (format!("{machine}{run}schedule = \"dual\"\n"), "\"dual\""),
        (format!("{machine}{run}value_bytes = 9\n"), "run 1, value_bytes"),
        (format!("{machine}{run}micro_batches = 9000000000000000000\n"), "run 1"),
        (format!("{machine}{run}published = {{ value = nan, of = \"step-seconds\" }}\n"), "published"),
        ("not toml".to_owned(), "here"),
    ];
    for (text, place) in cases {
        let message = Scenario::parse(&text, "here").unwrap_err().to_string();
        assert!(message.contains(place), "{place} is not in: {message}");
    }
}
