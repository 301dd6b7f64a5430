//! What opening a hostile pickle and writing a large file cost in memory. Alone in its process: it looks at the
//! process's own peak.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use model_center::formats::{PickleFile, StoredDtype, TensorEntry, TensorSource, write_pickle};

use crate::peak;

const MIB: u64 = 1 << 20;

/// The bytes of one of many pieces of a pickle.
type Piece = Box<dyn Fn(usize) -> Vec<u8>>;

/// A file of the older kind whose object is `head`, then `body` for each number below `count`, then `tail`, never whole
/// in memory, and then `storages`.
fn write(path: &Path, head: &[u8], body: &Piece, count: usize, tail: &[u8], storages: &[u8]) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.").unwrap();
    file.write_all(b"\x80\x02}X\x0d\0\0\0little_endian\x88s.\x80\x02").unwrap();
    file.write_all(head).unwrap();
    for i in 0..count {
        file.write_all(&body(i)).unwrap();
    }
    file.write_all(tail).unwrap();
    file.write_all(storages).unwrap();
}

/// A tensor of sixteen axes over a storage of one float, remembered as 0.
fn deep_tensor() -> Vec<u8> {
    let ones = [&b"("[..], &b"K\x01".repeat(16), b"t"].concat();
    let storage = b"((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x01tQK\0";
    [&b"ctorch._utils\n_rebuild_tensor_v2\n"[..], storage, &ones, &ones, b"\x89)tRq\0"].concat()
}

fn a_hostile_pickle_costs_its_length_and_at_most_64_mib(path: &Path) {
    let before = peak();
    let fixed = |bytes: &'static [u8]| -> Piece { Box::new(move |_| bytes.to_vec()) };
    let key = |i: usize| [&b"\x8c\x06"[..], format!("{i:06}").as_bytes()].concat();
    let named: Piece = Box::new(move |i| [&key(i)[..], b"h\0s"].concat());
    let storage: Piece = Box::new(move |i| match i {
        0..65_000 => [&b"0(h\x01h\x02"[..], &key(i), b"h\x03K\x01tQ"].concat(),
        _ => b"0]".to_vec(),
    });
    let dict_of_tensors = [b"}".to_vec(), deep_tensor(), b"0".to_vec()].concat();
    let storages = b"\x80\x02]X\x01\0\0\x000a.\x01\0\0\0\0\0\0\0\0\0\0\0";
    let cases: [(&[u8], Piece, usize, &[u8]); 13] = [
        // Values, each with memory of its own.
        (b"]", fixed(b"]K\x01aa"), 600_000, b"."),
        (b"]", fixed(b"\x8c\x01xa"), 600_000, b"."),
        (b"]", fixed(b"K\x01\x85a"), 600_000, b"."),
        (b"]", fixed(b"}K\x01K\x01sa"), 600_000, b"."),
        (b"]", fixed(b"ca\nb\na"), 600_000, b"K\x01K\x01u."),
        (b"]", Box::new(|i| [b"c", "n".repeat(500).as_bytes(), format!("{i}\nb\na").as_bytes()].concat()), 5_000, b"."),
        (b"", fixed(b"]"), 600_000, b"."),
        // Members, memo and copies.
        (b"]", fixed(b"Na"), 3_000_000, b"."),
        (b"]", fixed(b"\x94"), 2_000_000, b"."),
        (b"]q\0", fixed(b"h\0h\0h\0\x870"), 600_000, b"."),
        (b"}q\0(K\x01K\x02K\x03K\x04u", fixed(b"ccollections\nOrderedDict\nh\0\x85R0"), 300_000, b"."),
        // As many storages as there may be, then values.
        (b"((X\x07\0\0\0storageq\x01ctorch\nFloatStorage\nq\x02X\x03\0\0\0cpuq\x03", storage, 460_000, b"."),
        // As many tensors as there may be dimensions: this one is right to its end.
        (&dict_of_tensors, named, 65_536, b"."),
    ];
    for (i, (head, body, count, tail)) in cases.into_iter().enumerate() {
        write(path, head, &body, count, tail, storages);
        let opened = PickleFile::open(path);
        assert_eq!(opened.is_ok(), i == 12, "case {i}: {:?}", opened.err().map(|e| e.to_string()));
        drop(opened);
        let (cost, allowed) = (peak() - before, fs::metadata(path).unwrap().len() + 64 * MIB);
        println!("case {i}: {cost} bytes, allowed {allowed}");
        assert!(cost < allowed, "case {i}: {cost} bytes, allowed {allowed}");
    }
}

/// Eight tensors of 8 MiB, written and read: two of them at a time would be seen.
fn a_model_passes_through_one_tensor_at_a_time(path: &Path) {
    let entries: Vec<TensorEntry> =
        (0..8).map(|i| TensorEntry::new(format!("{i}"), StoredDtype::BF16, [2048, 1024])).collect();
    let before = peak();
    write_pickle(path, &entries, |_, out| {
        out.resize(2048 * 1024, 1.0);
        Ok(())
    })
    .unwrap();
    let file = PickleFile::open(path).unwrap();
    let mut values = vec![0.0; 2048 * 1024];
    let mut sum = 0.0f64;
    for entry in file.tensors() {
        file.read_f32(&entry.name, &mut values).unwrap();
        sum += values.iter().map(|v| f64::from(*v)).sum::<f64>();
    }
    assert_eq!(sum, 8.0 * 2048.0 * 1024.0);
    // One tensor, conversion buffers and room for the allocator; the whole model has 64 MiB in single precision.
    assert!(peak() - before < 24 * MIB, "{} bytes", peak() - before);
}

#[test]
fn pickles_are_read_and_written_in_bounded_memory() {
    if !crate::is_alone("hf_pickle_memory::pickles_are_read_and_written_in_bounded_memory") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    a_model_passes_through_one_tensor_at_a_time(&dir.path().join("model.pt"));
    a_hostile_pickle_costs_its_length_and_at_most_64_mib(&dir.path().join("hostile.pt"));
}
