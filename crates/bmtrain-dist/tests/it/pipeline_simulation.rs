//! Pipeline schedules in time: the bubbles of the formulas, links and overlap, diagrams.

use bmtrain_dist::pipeline::diagram;
use bmtrain_dist::pipeline::{Link, PipelineCosts, Schedule, ScheduleKind, Transfer, WorkTimes, simulate};

fn schedule(kind: ScheduleKind, stages: usize, chunks: usize, micro_batches: usize) -> Schedule {
    Schedule::new(kind, stages, chunks, micro_batches).unwrap()
}

/// The bubble and the time of a step with equal work of one second each and free links.
fn equal(schedule: &Schedule) -> (f64, f64) {
    let simulation = simulate(schedule, &PipelineCosts::equal(schedule)).unwrap();
    (simulation.bubble(), simulation.time())
}

#[test]
fn equal_work_and_free_links_give_the_formula_of_every_kind_exactly() {
    let mut seen = [0; 6];
    for (number, kind) in ScheduleKind::ALL.into_iter().enumerate() {
        for stages in 1..=8 {
            for chunks in 1..=4 {
                for micro_batches in 1..=4 * stages {
                    let Ok(schedule) = Schedule::new(kind, stages, chunks, micro_batches) else { continue };
                    let Some(formula) = kind.bubble(stages, chunks, micro_batches) else { continue };
                    assert_eq!(equal(&schedule).0, formula, "{kind}, {stages} x {chunks}, {micro_batches}");
                    seen[number] += 1;
                }
            }
        }
    }
    assert!(seen.iter().all(|&seen| seen > 20), "{seen:?}");
}

#[test]
fn a_step_takes_as_long_as_the_first_stage_and_the_fill_of_the_others() {
    // Three units of work for each micro-batch, of each of the two chunks under zb-v.
    assert_eq!(equal(&schedule(ScheduleKind::GPipe, 4, 1, 8)).1, 3.0 * (8.0 + 3.0));
    assert_eq!(equal(&schedule(ScheduleKind::OneForwardOneBackward, 4, 1, 8)).1, 3.0 * (8.0 + 3.0));
    assert_eq!(equal(&schedule(ScheduleKind::ZeroBubble, 4, 1, 8)).1, 3.0 * 8.0 + 3.0);
    assert_eq!(equal(&schedule(ScheduleKind::ZeroBubbleV, 4, 2, 8)).1, 6.0 * 8.0 + 3.0);
    assert_eq!(equal(&schedule(ScheduleKind::ForwardOnly, 4, 1, 8)).1, 8.0 + 3.0);
}

#[test]
fn zb_v_has_no_bubble_on_any_stage() {
    for stages in 1..=8 {
        for micro_batches in 2 * stages..=4 * stages {
            let schedule = schedule(ScheduleKind::ZeroBubbleV, stages, 2, micro_batches);
            let simulation = simulate(&schedule, &PipelineCosts::equal(&schedule)).unwrap();
            for stage in simulation.stages() {
                assert_eq!((stage.idle(), stage.busy()), (0.0, 6.0 * micro_batches as f64));
            }
        }
    }
}

#[test]
fn zb_v_on_an_evaluation_places_chunks_so_that_no_stage_waits() {
    let training = schedule(ScheduleKind::ZeroBubbleV, 4, 2, 8);
    let evaluation = training.forward_only(12).unwrap();
    let (bubble, time) = equal(&evaluation);
    // The last micro-batch enters after two units for each one before it and passes eight places.
    assert_eq!(time, 2.0 * 11.0 + 8.0);
    assert!(bubble <= 7.0 / 24.0, "{bubble}");
}

#[test]
fn overlapped_messages_delay_a_pipeline_less_than_blocking_ones() {
    let schedule = schedule(ScheduleKind::OneForwardOneBackward, 4, 1, 12);
    let link = Link::new(0.01, 100.0).unwrap();
    let costs =
        |transfer| PipelineCosts { message_bytes: 10.0, inside: link, transfer, ..PipelineCosts::equal(&schedule) };
    let time = |transfer| simulate(&schedule, &costs(transfer)).unwrap().time();
    let free = equal(&schedule).1;
    let (overlapped, blocking) = (time(Transfer::Overlapped), time(Transfer::Blocking));
    assert!(free < overlapped && overlapped < blocking, "{free} {overlapped} {blocking}");
    assert_eq!(simulate(&schedule, &costs(Transfer::Blocking).with_free_links()).unwrap().time(), free);
}

#[test]
fn one_micro_batch_passes_every_edge_twice_at_the_edges_own_speed() {
    let schedule = schedule(ScheduleKind::GPipe, 4, 1, 1);
    let costs = PipelineCosts {
        message_bytes: 8.0,
        hosts: vec![0, 0, 1, 1],
        inside: Link::new(0.5, 16.0).unwrap(),
        between: Link::new(1.0, 4.0).unwrap(),
        ..PipelineCosts::equal(&schedule)
    };
    // Two edges inside hosts of 1 second and one between hosts of 3, in both directions.
    assert_eq!(simulate(&schedule, &costs).unwrap().time(), 4.0 * 3.0 + 2.0 * (1.0 + 3.0 + 1.0));
}

#[test]
fn messages_on_one_link_follow_each_other() {
    let schedule = schedule(ScheduleKind::ForwardOnly, 2, 1, 3);
    let slow = Link::new(0.0, 1.0).unwrap();
    let costs = PipelineCosts { message_bytes: 5.0, inside: slow, ..PipelineCosts::equal(&schedule) };
    // The first message leaves after one second, and each of three occupies the link for five.
    assert_eq!(simulate(&schedule, &costs).unwrap().time(), 1.0 + 3.0 * 5.0 + 1.0);
}

#[test]
fn the_slowest_stage_sets_the_pace() {
    let schedule = schedule(ScheduleKind::OneForwardOneBackward, 4, 1, 100);
    let mut costs = PipelineCosts::equal(&schedule);
    costs.work[2] = WorkTimes { forward: 2.0, input_gradient: 2.0, weight_gradient: 2.0 };
    let simulation = simulate(&schedule, &costs).unwrap();
    assert_eq!(simulation.stages()[2].busy(), 600.0);
    assert!(simulation.time() < 600.0 + 12.0 && simulation.bubble() > 0.9, "{}", simulation.time());
}

#[test]
fn costs_that_do_not_match_or_are_no_times_are_refused() {
    let schedule = schedule(ScheduleKind::GPipe, 2, 1, 2);
    let refused = |change: &dyn Fn(&mut PipelineCosts)| {
        let mut costs = PipelineCosts::equal(&schedule);
        change(&mut costs);
        simulate(&schedule, &costs).unwrap_err().to_string()
    };
    assert!(refused(&|costs| costs.work.truncate(1)).contains("expected 2"));
    assert!(refused(&|costs| costs.hosts.push(0)).contains("3 stages have a host"));
    assert!(refused(&|costs| costs.work[1].forward = -1.0).contains("-1"));
    assert!(refused(&|costs| costs.message_bytes = f64::NAN).contains("NaN"));
    for (latency, bandwidth) in [(-1.0, 1.0), (0.0, 0.0), (f64::INFINITY, 1.0), (0.0, f64::NAN)] {
        assert!(Link::new(latency, bandwidth).is_err());
    }
}

#[test]
fn a_text_diagram_has_a_row_for_each_stage() {
    let schedule = schedule(ScheduleKind::OneForwardOneBackward, 2, 1, 2);
    let simulation = simulate(&schedule, &PipelineCosts::equal(&schedule)).unwrap();
    let expected = "0 |F0-F1-......B0----...B1----|\n1 |...F0-B0----F1-B1----......|";
    assert_eq!(diagram::text(&simulation, 3.0).unwrap(), expected);
    assert!(diagram::text(&simulation, 1e6).unwrap_err().to_string().contains("fewer micro-batches"));
}

#[test]
fn an_svg_is_small_and_follows_the_theme() {
    let schedule = schedule(ScheduleKind::ZeroBubbleV, 4, 2, 10);
    let simulation = simulate(&schedule, &PipelineCosts::equal(&schedule)).unwrap();
    let svg = diagram::svg(&schedule, &simulation).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("zb-v: 4 stages, 10 micro-batches"));
    assert!(svg.len() < 20_000, "{} bytes", svg.len());
    let large = self::schedule(ScheduleKind::GPipe, 8, 1, 1000);
    let simulation = simulate(&large, &PipelineCosts::equal(&large)).unwrap();
    assert!(diagram::svg(&large, &simulation).is_err());
}
