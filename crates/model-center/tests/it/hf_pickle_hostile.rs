//! Damaged and hostile files of PyTorch: each is refused with a reason or read, none panics, hangs or eats memory.

use crate::mutants;

use std::fs;
use std::path::{Path, PathBuf};

use model_center::formats::{PickleFile, TensorSource};
use mutants::{Random, replace};

/// Mutants of each container.
const MUTANTS: u64 = 10_000;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pickles").join(name)
}

/// Opens and reads everything. An accepted file has the values that it declares.
fn accepted(path: &Path, length: usize) -> bool {
    let Ok(file) = PickleFile::open(path) else { return false };
    for entry in file.tensors() {
        let bytes = entry.bytes().unwrap();
        assert!(bytes <= length, "{} of {bytes} bytes in a file of {length}", entry.name);
        file.read_raw_at(&entry.name, 0, &mut vec![0; bytes]).unwrap();
        assert_eq!(file.read_f32(&entry.name, &mut vec![0.0; entry.elements().unwrap()]).is_ok(), entry.is_float());
    }
    true
}

/// The header fields of a zip entry, which tests falsify.
struct Entry<'a> {
    name: &'a str,
    data: &'a [u8],
    method: u16,
    flags: u16,
    /// Added to the place and the length that the list states.
    place: i64,
    length: i64,
}

fn entry<'a>(name: &'a str, data: &'a [u8]) -> Entry<'a> {
    Entry { name, data, method: 0, flags: 0, place: 0, length: 0 }
}

fn zip(entries: &[Entry<'_>]) -> Vec<u8> {
    let (mut out, mut list) = (Vec::new(), Vec::new());
    for entry in entries {
        let at = (out.len() as i64 + entry.place) as u32;
        let length = (entry.data.len() as i64 + entry.length) as u32;
        let mut shared = Vec::new();
        for number in [20, entry.flags, entry.method, 0, 0, 0, 0] {
            shared.extend(number.to_le_bytes());
        }
        shared.extend(length.to_le_bytes());
        shared.extend(length.to_le_bytes());
        shared.extend((entry.name.len() as u16).to_le_bytes());
        shared.extend(0u16.to_le_bytes());
        out.extend(b"PK\x03\x04");
        out.extend(&shared);
        out.extend(entry.name.as_bytes());
        out.extend(entry.data);
        list.extend(b"PK\x01\x02\x14\0");
        list.extend(&shared);
        list.extend([0; 10]);
        list.extend(at.to_le_bytes());
        list.extend(entry.name.as_bytes());
    }
    let start = out.len() as u32;
    out.extend(&list);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend((entries.len() as u16).to_le_bytes());
    out.extend((entries.len() as u16).to_le_bytes());
    out.extend((list.len() as u32).to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend(0u16.to_le_bytes());
    out
}

/// An archive around a pickle, with one storage of eight 32-bit floats.
fn archive(pickle: &[u8]) -> Vec<u8> {
    zip(&[
        entry("a/data.pkl", pickle),
        entry("a/byteorder", b"little"),
        entry("a/data/0", &[0; 32]),
        entry("a/version", b"3\n"),
    ])
}

fn integer(value: i64) -> Vec<u8> {
    [&[0x8a, 8][..], &value.to_le_bytes()].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&[0x8c, text.len() as u8][..], text.as_bytes()].concat()
}

fn tuple(numbers: &[i64]) -> Vec<u8> {
    [b"(".to_vec(), numbers.iter().flat_map(|n| integer(*n)).collect(), b"t".to_vec()].concat()
}

/// A call of the constructor of tensors over storage `key`.
fn tensor(class: &str, key: &str, numel: i64, offset: i64, size: &[i64], stride: &[i64]) -> Vec<u8> {
    let parts = [
        b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
        text("storage"),
        format!("c{class}\n").into_bytes(),
        text(key),
        text("cpu"),
        integer(numel),
        b"tQ".to_vec(),
        integer(offset),
        tuple(size),
        tuple(stride),
        b"\x89ccollections\nOrderedDict\n)RtR".to_vec(),
    ];
    parts.concat()
}

/// A dictionary of one tensor `w`, whose value is `value`.
fn dictionary(value: &[u8]) -> Vec<u8> {
    [b"\x80\x02}".to_vec(), text("w"), value.to_vec(), b"s.".to_vec()].concat()
}

fn float(numel: i64, offset: i64, size: &[i64], stride: &[i64]) -> Vec<u8> {
    dictionary(&tensor("torch\nFloatStorage", "0", numel, offset, size, stride))
}

fn check(path: &Path, bytes: &[u8], want: &str) {
    replace(path, bytes);
    match (PickleFile::open(path), want) {
        (Ok(_), "") => assert!(accepted(path, bytes.len())),
        (Ok(_), want) => panic!("accepted, but should be refused: {want}"),
        (Err(error), "") => panic!("{error}"),
        (Err(error), want) => {
            let error = error.to_string();
            assert!(error.contains(want) && error.contains("fix: "), "{want}: {error}");
        }
    }
}

#[test]
fn a_file_that_ends_early_is_refused_wherever_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    for name in ["types.zip.pt", "types.legacy.pt", "views.legacy.pt", "namespace.legacy.pt"] {
        let whole = fs::read(golden(name)).unwrap();
        for length in 0..whole.len() {
            replace(&path, &whole[..length]);
            assert!(PickleFile::open(&path).is_err(), "{name} of {length} bytes");
        }
        replace(&path, &whole);
        assert!(accepted(&path, whole.len()), "{name}");
        replace(&path, &[&whole[..], b"x"].concat());
        assert!(PickleFile::open(&path).is_err(), "{name} with a byte more");
    }
}

#[test]
fn no_single_flipped_bit_of_a_legacy_file_does_harm() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let whole = fs::read(golden("views.legacy.pt")).unwrap();
    let (mut read, mut refused) = (0, 0);
    for bit in 0..8 * whole.len() {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        replace(&path, &bytes);
        if accepted(&path, bytes.len()) { read += 1 } else { refused += 1 }
    }
    // Flips in names and data are read, those in the structure are not.
    assert!(read > 1000 && refused > 1000, "{read} read, {refused} refused");
}

#[test]
fn ten_thousand_mutants_of_each_container_are_refused_or_read_without_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    for names in [
        ["types.zip.pt", "views.zip.pt", "namespace.zip.pt"],
        ["types.legacy.pt", "views.legacy.pt", "namespace.legacy.pt"],
    ] {
        let files = names.map(|name| fs::read(golden(name)).unwrap());
        let (mut read, mut refused) = (0, 0);
        for seed in 0..MUTANTS {
            let random = &mut Random(seed);
            let mut bytes = files[random.below(files.len())].clone();
            for _ in 0..1 + random.below(4) {
                mutate(&mut bytes, random);
            }
            replace(&path, &bytes);
            if accepted(&path, bytes.len()) { read += 1 } else { refused += 1 }
        }
        // Mutants that are all refused early, or all accepted, would test nothing.
        assert!(read > MUTANTS / 50 && refused > MUTANTS / 4, "{names:?}: {read} read, {refused} refused");
    }
}

/// Flips a bit, writes a false number or an opcode, removes or doubles a part.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    let numbers = [0, 1, u64::MAX, 1 << 63, u64::from(u32::MAX), 0x7fff_ffff, bytes.len() as u64, random.next() % 600];
    match random.below(6) {
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes[at] = b"().0]}NQRbcehjlqrstua\x81\x85\x86\x87\x88\x8a\x8c\x94\x95"[random.below(30)],
        3 => {
            let number = numbers[random.below(numbers.len())].to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        4 => drop(bytes.drain(at..(at + 1 + random.below(12)).min(bytes.len()))),
        _ => {
            let piece = bytes[at..(at + 1 + random.below(40)).min(bytes.len())].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, piece);
        }
    }
    if bytes.is_empty() {
        bytes.push(0x80);
    }
}

#[test]
fn every_instruction_that_is_not_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    for (code, name) in [
        (b'2', "DUP"),
        (b'F', "FLOAT"),
        (b'I', "INT"),
        (b'L', "LONG"),
        (b'P', "PERSID"),
        (b'S', "STRING"),
        (b'V', "UNICODE"),
        (b'g', "GET"),
        (b'i', "INST"),
        (b'o', "OBJ"),
        (b'p', "PUT"),
        (0x82, "EXT1"),
        (0x83, "EXT2"),
        (0x84, "EXT4"),
        (0x97, "NEXT_BUFFER"),
        (0x98, "READONLY_BUFFER"),
        (0xff, "0xff"),
        (b'\n', "0x0a"),
    ] {
        let pickle = [b"\x80\x02}}", &[code][..], b"os\nsystem\n."].concat();
        check(&path, &archive(&pickle), &format!("byte 4: the instruction {name} is not read"));
    }
    for code in 0..=255u8 {
        for rest in
            [&b""[..], b".", b"\x01.", b"\x01\x01\x01\x01\x01\x01\x01\x01\x01.", b"\xff\xff\xff\xff\xff\xff\xff\xff."]
        {
            for before in [&b"\x80\x02"[..], b"\x80\x02}", b"\x80\x02(]K\x01", b"\x80\x02))"] {
                replace(&path, &archive(&[before, &[code], rest].concat()));
                assert!(PickleFile::open(&path).is_err());
            }
        }
    }
}

#[test]
fn calls_are_refused_whatever_the_way_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let good = tensor("torch\nFloatStorage", "0", 8, 0, &[8], &[1]);
    check(&path, &archive(&dictionary(&good)), "");
    let beside = |value: &[u8]| {
        let parts = [&b"\x80\x02}("[..], &text("w"), &good, &text("x"), value, b"u."];
        archive(&parts.concat())
    };
    let stacked = [text("os"), text("system"), b"\x93".to_vec()].concat();
    for (value, want) in [
        (&b"cposix\nsystem\n(Vx\ntR"[..], "GLOBAL of the global posix.system"),
        (b"cos\nsystem\n", "GLOBAL of the global os.system"),
        (&stacked, "STACK_GLOBAL of the global os.system"),
        (b"c__builtin__\neval\n", "__builtin__.eval"),
        (b"cbuiltins\ngetattr\n", "builtins.getattr"),
        (b"csubprocess\nPopen\n)\x81", "subprocess.Popen"),
        (b"ctorch.hub\nload\n)R", "torch.hub.load"),
        (b"cnumpy\n__dict__\n", "numpy.__dict__"),
        (b"cos\x1b[31m\nsystem\n)R", "os\\u{1b}[31m.system"),
        (b"csome.module\nfunction\n)R", "REDUCE calls the global some.module.function"),
        (b"ccollections\nnamedtuple\n)R", "REDUCE calls the global collections.namedtuple"),
        (b"ctorch._utils\n_rebuild_sparse_tensor\n)R", "torch._utils._rebuild_sparse_tensor"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)\x81", "which is not a class"),
        (b"]]R", "REDUCE calls a list"),
        (b"csome\nClass\n]R", "without a tuple"),
        (b"ctorch._utils\n_rebuild_parameter\n]\x88]\x87R", "not a tensor"),
        // An object that is made without a call is inert, but no tensor.
        (b"csome.module\nClass\n)\x81}b", "x is an object of the class some.module.Class"),
        // The arguments of a command line are read.
        (b"cargparse\nNamespace\n)R}b", ""),
        (b"ctorch\nfloat16\n", "x is the name torch.float16"),
        (b"]csome\nClass\n)\x81}ba", ""),
        (b"K\x07}b", "BUILD gives a state to an integer"),
        (b"K\x07Q", "BINPERSID of something that is not a storage"),
    ] {
        check(&path, &beside(value), want);
    }
}

#[test]
fn views_have_to_lie_in_their_storage_and_storages_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let far = i64::MAX;
    for (pickle, want) in [
        (float(8, 0, &[2, 4], &[4, 1]), ""),
        (float(8, 2, &[3, 2], &[1, 3]), ""),
        (float(8, 0, &[], &[]), ""),
        (float(8, 99, &[0, 4], &[4, 1]), ""),
        (float(8, 1, &[2, 4], &[4, 1]), "out of its 8 values"),
        (float(8, 0, &[2, 4], &[5, 1]), "out of its 8 values"),
        (float(8, far, &[2], &[1]), "out of its 8 values"),
        (float(8, 0, &[far, far], &[1, 1]), "out of its 8 values"),
        (float(8, 0, &[3, 3], &[far, far]), "out of its 8 values"),
        (float(8, 0, &[1000, 1000], &[0, 0]), "repeats values"),
        (float(8, 0, &[2, 4], &[4]), "2 axes, its stride 1"),
        (float(8, -1, &[2], &[1]), "not whole numbers"),
        (float(8, 0, &[-2], &[1]), "not whole numbers"),
        (float(8, 0, &[1; 17], &[1; 17]), "up to 16 axes"),
        (float(9, 0, &[8], &[1]), "the pickle declares 9 values"),
        (float(far, 0, &[8], &[1]), "the pickle declares"),
        (float(-8, 0, &[8], &[1]), "without a length"),
        (
            dictionary(&tensor("torch\nFloatStorage", "1", 8, 0, &[8], &[1])),
            "entry a/data/1: the archive does not have it",
        ),
        (dictionary(&tensor("torch\nFloatStorage", "../../x", 8, 0, &[8], &[1])), "does not have it"),
        (
            dictionary(&tensor("torch\nQInt8Storage", "0", 32, 0, &[8], &[1])),
            "a storage of the type torch.QInt8Storage",
        ),
        (dictionary(&tensor("torch.storage\nUntypedStorage", "0", 32, 0, &[8], &[1])), ""),
        (b"\x80\x02}.".to_vec(), "without tensors"),
        (b"\x80\x02].".to_vec(), "the file holds a list without tensors"),
        (
            [b"\x80\x02}K\x01".to_vec(), tensor("torch\nFloatStorage", "0", 8, 0, &[8], &[1]), b"s.".to_vec()].concat(),
            "not a text",
        ),
        ([&float(8, 0, &[8], &[1])[..], b"x"].concat(), "1 bytes follow the end"),
    ] {
        check(&path, &archive(&pickle), want);
    }
}

#[test]
fn archives_that_lie_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let (pickle, data) = (float(8, 0, &[8], &[1]), [0; 32]);
    let with = |change: &dyn Fn(&mut Vec<Entry<'_>>)| {
        let mut entries = vec![
            entry("a/data.pkl", &pickle),
            entry("a/byteorder", b"little"),
            entry("a/data/0", &data),
            entry("a/version", b"3\n"),
        ];
        change(&mut entries);
        zip(&entries)
    };
    check(&path, &with(&|_| {}), "");
    check(&path, &with(&|list| drop(list.drain(1..2))), "");
    for (bytes, want) in [
        (with(&|list| list[2].place = 1), "its header is not where"),
        (with(&|list| list[2].place = -30), "its header"),
        (with(&|list| list[2].place = 1 << 30), "leaves the part of the file"),
        (with(&|list| list[2].length = 1 << 30), "leaves the part of the file"),
        (with(&|list| list[2].length = -4), "has 28 bytes"),
        (with(&|list| list[2].method = 8), "compressed or encrypted"),
        (with(&|list| list[2].flags = 1), "compressed or encrypted"),
        (with(&|list| list[0].method = 8), "compressed or encrypted"),
        (with(&|list| list[0].length = -1), "should follow"),
        (with(&|list| list[2].name = "a/data.pkl"), "appears twice"),
        (with(&|list| list[2].name = "b/data.pkl"), "several directories"),
        (with(&|list| list[0].name = "a/b/data.pkl"), "without a DIRECTORY/data.pkl"),
        (with(&|list| list[0].name = "data.pkl"), "without a DIRECTORY/data.pkl"),
        (with(&|list| list[3].name = "a/constants.pkl"), "TorchScript"),
        (with(&|list| list[1].data = b"big"), "big endian"),
        (with(&|list| list[3].data = b"11"), "version 11"),
        (with(&|list| list[3].data = b"x"), "no number"),
    ] {
        check(&path, &bytes, want);
    }
    let good = with(&|_| {});
    let end = good.len() - 22;
    for (at, number, want) in [
        (10, 5u32, "bytes should follow"),
        (10, 3, "bytes follow the last entry"),
        (12, u32::MAX, "large archives"),
        (12, 1 << 30, "leaves the file"),
        (16, u32::MAX - 1, "leaves the file"),
        (16, 0, "there should be an entry"),
        (20, 1, "has no end"),
    ] {
        let mut bytes = good.clone();
        let width = if at == 10 || at == 20 { 2 } else { 4 };
        bytes[end + at..end + at + width].copy_from_slice(&number.to_le_bytes()[..width]);
        check(&path, &bytes, want);
    }
}

#[test]
fn nesting_marks_and_memos_have_limits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let many = |unit: &[u8], count: usize| [b"\x80\x02", &unit.repeat(count)[..], b"."].concat();
    for (pickle, want) in [
        (many(b"(", 5000), "MARK: nested deeper than 4096"),
        (many(b"]", 300_000), "wait on the stack"),
        (many(b"]0", 600_000), "more than 524288 values"),
        (b"\x80\x02]r\xff\xff\xff\xff.".to_vec(), "number 4294967295, the limit"),
        (b"\x80\x02h\x07.".to_vec(), "nothing was remembered as 7"),
        (b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xffx.".to_vec(), "should follow"),
        (b"\x80\x02X\xff\xff\xff\x7fx.".to_vec(), "should follow"),
        (b"\x80\x02\x8b\xff\xff\xff\xff.".to_vec(), "should follow"),
        (b"\x80\x02\x95\xff\xff\xff\xff\xff\xff\xff\x7f.".to_vec(), "FRAME of"),
        (b"\x80\x02\x96\xff\xff\xff\xff\xff\xff\xff\xff.".to_vec(), "should follow"),
        (b"\x80\x06.".to_vec(), "pickle protocol 6"),
        ([&b"\x80\x02c"[..], &[b'a'; 600], b"\nb\n."].concat(), "a name of more than 512 bytes"),
        // A list inside of a list inside of a list, far deeper than a stack of calls would bear.
        ([&b"\x80\x02"[..], &b"]".repeat(200_000), &b"a".repeat(199_999), b"."].concat(), "the file holds a list"),
        // A list that holds itself.
        (b"\x80\x02]q\0h\0a.".to_vec(), "the file holds a list"),
        (b"\x80\x02t.".to_vec(), "wants a mark"),
        (b"\x80\x02(].0.".to_vec(), "bytes follow the end"),
        (b"\x80\x02](a.".to_vec(), "wants a value"),
        (b"\x80\x02(]u.".to_vec(), "wants a value"),
    ] {
        check(&path, &archive(&pickle), want);
    }
}
