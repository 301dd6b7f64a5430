//! Pipeline schedules: complete, ascending, free of deadlock, with the memory and the bubble that their kinds promise.

use bmtrain_dist::pipeline::{Action, Schedule, ScheduleKind, Work};

/// Every schedule of up to 8 stages, 4 chunks and 3 P + 1 micro-batches that its kind allows.
fn schedules() -> Vec<Schedule> {
    let mut all = Vec::new();
    for kind in ScheduleKind::ALL {
        for stages in 1..=8 {
            for chunks in 1..=4 {
                for micro_batches in 1..=3 * stages + 1 {
                    all.extend(Schedule::new(kind, stages, chunks, micro_batches));
                }
            }
        }
    }
    let placed = Schedule::new(ScheduleKind::ZeroBubbleV, 5, 2, 7).unwrap();
    all.push(placed.forward_only(9).unwrap());
    assert!(all.len() > 1000, "only {} schedules were tried", all.len());
    all
}

fn named(schedule: &Schedule) -> String {
    let (kind, p, v, m) = (schedule.kind(), schedule.stages(), schedule.chunks(), schedule.micro_batches());
    format!("{kind}, {p} stages, {v} chunks, {m} micro-batches")
}

#[test]
fn every_schedule_is_complete_ascending_and_free_of_deadlock() {
    for schedule in schedules() {
        schedule.check().unwrap_or_else(|error| panic!("{}: {error}", named(&schedule)));
    }
}

#[test]
fn places_and_holders_are_inverse_and_cover_the_model() {
    for schedule in schedules() {
        let mut seen = vec![false; schedule.places()];
        for stage in 0..schedule.stages() {
            for chunk in 0..schedule.chunks() {
                let place = schedule.place(stage, chunk);
                assert_eq!(schedule.holder(place), (stage, chunk), "{}", named(&schedule));
                assert!(!std::mem::replace(&mut seen[place], true), "{}", named(&schedule));
            }
        }
        assert!(seen.into_iter().all(|seen| seen));
    }
}

#[test]
fn chunks_alternate_over_the_stages_or_turn_back_along_a_v() {
    let interleaved = Schedule::new(ScheduleKind::Interleaved, 3, 2, 3).unwrap();
    assert_eq!((0..6).map(|place| interleaved.holder(place).0).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    let v = Schedule::new(ScheduleKind::ZeroBubbleV, 3, 2, 6).unwrap();
    assert_eq!((0..6).map(|place| v.holder(place).0).collect::<Vec<_>>(), [0, 1, 2, 2, 1, 0]);
    let evaluation = v.forward_only(2).unwrap();
    assert_eq!(
        (0..6).map(|place| evaluation.holder(place)).collect::<Vec<_>>(),
        [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)]
    );
}

#[test]
fn one_forward_one_backward_is_the_published_order() {
    let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 4, 1, 6).unwrap();
    let letters = |stage: usize| {
        let letter = |action: &Action| match action.work {
            Work::Forward => format!("F{}", action.micro_batch),
            _ => format!("B{}", action.micro_batch),
        };
        schedule.actions(stage).iter().map(letter).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(letters(0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5");
    assert_eq!(letters(2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5");
    assert_eq!(letters(3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5");
}

#[test]
fn interleaved_runs_rounds_of_as_many_micro_batches_as_stages() {
    let schedule = Schedule::new(ScheduleKind::Interleaved, 2, 2, 4).unwrap();
    let forward: Vec<_> = schedule.actions(1).iter().filter(|action| action.work == Work::Forward).collect();
    let order: Vec<_> = forward.iter().map(|action| (action.chunk, action.micro_batch)).collect();
    assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]);
    // The last stage has the first gradient as soon as it has run the first micro-batch of its last chunk.
    assert_eq!(schedule.actions(1)[3], Action::new(Work::Backward, 1, 0));
}

#[test]
fn activations_in_flight_are_those_that_each_kind_promises() {
    for schedule in schedules() {
        let (p, v, m) = (schedule.stages(), schedule.chunks(), schedule.micro_batches());
        for stage in 0..p {
            let peak = schedule.peak_in_flight(stage);
            let expected = match schedule.kind() {
                ScheduleKind::GPipe => m,
                ScheduleKind::OneForwardOneBackward => (p - stage).min(m),
                ScheduleKind::Interleaved => (2 * (p - 1 - stage) + (v - 1) * p + 1).min(v * m),
                ScheduleKind::ForwardOnly => 1,
                ScheduleKind::ZeroBubble => {
                    assert!(peak <= p.min(m), "{}, stage {stage}: {peak}", named(&schedule));
                    continue;
                }
                ScheduleKind::ZeroBubbleV => {
                    assert!(peak <= (2 * p + 1).min(2 * m), "{}, stage {stage}: {peak}", named(&schedule));
                    continue;
                }
            };
            assert_eq!(peak, expected, "{}, stage {stage}", named(&schedule));
        }
    }
}

#[test]
fn zb_1p_holds_what_1f1b_holds_on_the_first_stage() {
    for stages in 1..=8 {
        let peak = |kind| Schedule::new(kind, stages, 1, 3 * stages).unwrap().peak_in_flight(0);
        assert_eq!(peak(ScheduleKind::ZeroBubble), peak(ScheduleKind::OneForwardOneBackward));
        assert_eq!(peak(ScheduleKind::ZeroBubble), stages);
    }
}

#[test]
fn every_message_sent_is_needed_once_and_only_by_the_stage_it_goes_to() {
    for schedule in schedules() {
        let stages = schedule.stages();
        let mut needed: Vec<_> = (0..stages)
            .flat_map(|to| schedule.actions(to).iter().map(move |&action| (to, action)))
            .filter_map(|(to, action)| {
                let (from, _) = schedule.source(to, action)?;
                (from != to).then_some((from, to, action))
            })
            .collect();
        let mut sent = Vec::new();
        for from in 0..stages {
            for to in 0..stages {
                sent.extend(schedule.messages(from, to).into_iter().map(|message| (from, to, message.needed_by)));
            }
        }
        needed.sort_unstable();
        sent.sort_unstable();
        assert_eq!(sent, needed, "{}", named(&schedule));
    }
}

#[test]
fn what_a_kind_cannot_run_is_refused_with_what_it_can() {
    let refusal = |kind, stages, chunks, micro_batches| {
        Schedule::new(kind, stages, chunks, micro_batches).unwrap_err().to_string()
    };
    let message = refusal(ScheduleKind::Interleaved, 4, 2, 6);
    assert!(message.contains("4 stages") && message.contains("got 6") && message.contains("use 4 or 8"), "{message}");
    let message = refusal(ScheduleKind::Interleaved, 4, 2, 3);
    assert!(message.ends_with("use 4"), "{message}");
    let message = refusal(ScheduleKind::Interleaved, 4, 1, 4);
    assert!(message.contains("use 1f1b"), "{message}");
    let message = refusal(ScheduleKind::ZeroBubbleV, 4, 1, 8);
    assert!(message.contains("exactly 2 chunks"), "{message}");
    let message = refusal(ScheduleKind::OneForwardOneBackward, 4, 2, 8);
    assert!(message.contains("use interleaved"), "{message}");
    for kind in ScheduleKind::ALL {
        let chunks = kind.default_chunks();
        assert!(refusal(kind, 2, chunks, 0).contains("at least 1 micro-batch"));
        assert!(refusal(kind, 0, chunks, 2).contains("at least 1 stage"));
        assert!(refusal(kind, 2, chunks, usize::MAX - 1).contains("use fewer micro-batches"));
        assert!(Schedule::new(kind, 1, chunks, 3).is_ok());
    }
}

#[test]
fn names_are_read_back_and_unknown_ones_are_refused_with_the_list() {
    for kind in ScheduleKind::ALL {
        assert_eq!(kind.to_string().parse::<ScheduleKind>().unwrap(), kind);
    }
    let message = "zb-h1".parse::<ScheduleKind>().unwrap_err().to_string();
    assert!(message.contains("\"zb-h1\"") && message.contains("1f1b") && message.contains("zb-1p"), "{message}");
}
