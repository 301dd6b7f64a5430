//! Tests of pieces and their kinds.

use super::*;

fn spec() -> PieceSpec {
    PieceSpec::whole("layer.weight", Kind::Master, DType::F32, &[4, 6])
}

#[test]
fn kinds_have_one_spelling_each() {
    for kind in [Kind::Parameter, Kind::Master, Kind::MomentM, Kind::MomentV, Kind::Other("rows-1".into())] {
        let text = String::from(kind.clone());
        assert_eq!(Kind::try_from(text), Ok(kind));
    }
    for wrong in ["", "Parameter", "other-", "other-A", "other-a_b", "other"] {
        assert!(Kind::try_from(wrong.to_string()).is_err(), "{wrong}");
    }
}

#[test]
fn pieces_that_cannot_be_are_refused() {
    assert_eq!(spec().check(), Ok(()));
    assert_eq!(spec().part(20, 4).check(), Ok(()));
    assert_eq!(PieceSpec::whole("empty", Kind::Parameter, DType::U8, &[0, 3]).check(), Ok(()));
    assert_eq!(PieceSpec::whole("scalar", Kind::Parameter, DType::I64, &[]).check(), Ok(()));
    let huge = PieceSpec { shape: vec![u64::MAX, 2], ..spec() };
    let eight_times = PieceSpec { shape: vec![u64::MAX], length: u64::MAX, dtype: DType::I64, ..spec() };
    let label = PieceSpec { kind: Kind::Other("A".into()), ..spec() };
    let names = [String::new(), "a\nb".into(), "n".repeat(1025)].map(|name| PieceSpec { name, ..spec() });
    let rest = [spec().part(20, 5), spec().part(u64::MAX, 2), spec().part(3, 0), huge, eight_times, label];
    for wrong in rest.into_iter().chain(names).chain([PieceSpec { shape: vec![1; 17], ..spec() }]) {
        assert!(wrong.check().is_err(), "{wrong:?}");
    }
}

#[test]
fn runs_are_apart_within_rows_and_have_one_spelling() {
    let runs = |start, length, runs, stride| spec().strided(start, length, runs, stride);
    for right in [runs(2, 3, 4, 6), runs(0, 5, 2, 6), runs(17, 1, 2, 6), runs(4, 2, 2, 12)] {
        assert_eq!(right.check(), Ok(()));
        assert_eq!(right.bytes(), Some(4 * right.length * right.runs));
        let text = serde_json::to_string(&right).unwrap();
        assert_eq!(serde_json::from_str::<PieceSpec>(&text).unwrap(), right);
    }
    assert!(!serde_json::to_string(&spec().part(3, 4)).unwrap().contains("runs"), "as in the first version");
    let wrong = [(2, 3, 0, 6), (2, 3, 1, 6), (2, 3, 2, 0), (0, 6, 2, 6), (4, 3, 2, 6), (8, 3, 4, 6), (0, 2, 2, 5)];
    let large = [(0, 1, u64::MAX, 6), (0, 1, u64::MAX, u64::MAX), (1, u64::MAX, 2, 6), (u64::MAX, 1, 2, 6)];
    for (start, length, count, stride) in wrong.into_iter().chain(large) {
        assert!(runs(start, length, count, stride).check().is_err(), "{start} {length} {count} {stride}");
    }
}

#[test]
fn a_file_whose_pieces_overlap_or_leave_it_is_refused() {
    let hash = ContentHash::of(b"");
    let at = |offset| PieceRecord { spec: spec(), offset, hash };
    let file = |pieces| FileRecord { name: "a".into(), bytes: 296, hash, pieces };
    assert_eq!(file(vec![at(8), at(104), at(200)]).check(), Ok(()));
    for pieces in [vec![at(7)], vec![at(201)], vec![at(8), at(103)], vec![at(104), at(8)], vec![at(u64::MAX)]] {
        assert!(file(pieces).check().is_err());
    }
    let text = file(vec![at(8)]).to_json().unwrap();
    assert_eq!(FileRecord::from_json(&text).unwrap(), file(vec![at(8)]));
    assert!(FileRecord::from_json(&file(vec![at(7)]).to_json().unwrap()).is_err());
}
