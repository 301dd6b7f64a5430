//! Tests of page headers and footers.

use super::*;

/// The field after the one before, and a number as the protocol has it.
fn int(step: u8, number: i64) -> Vec<u8> {
    let mut bytes = vec![step << 4 | I32];
    bytes.extend(varint((number << 1 ^ number >> 63).cast_unsigned()));
    bytes
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[test]
fn a_page_header_is_read_and_cut_off_anywhere() {
    let data = [int(1, 300), int(1, 8), int(1, 3), int(1, 3), vec![STOP]].concat();
    let header = [int(1, 0), int(1, 70_000), int(1, 900), int(1, -2), vec![0x1C], data, vec![STOP]].concat();
    let read = PageHeader::read(&[&header[..], b"the page"].concat()).unwrap();
    assert_eq!(read.content, PageContent::Data { values: 300, encoding: 8, level_encoding: 3 });
    assert_eq!((read.length, read.plain_bytes, read.stored_bytes), (header.len(), 70_000, 900));
    assert_eq!(read.checksum, Some(u32::MAX - 1));
    for end in 0..header.len() {
        assert_eq!(PageHeader::read(&header[..end]), Err(Broken::CutOff), "{end}");
    }
    let negative = [int(1, 0), int(1, -1), int(1, 900), vec![STOP]].concat();
    assert_eq!(PageHeader::read(&negative), Err(Broken::Wrong));
}

#[test]
fn lists_that_announce_too_much_and_bottomless_schemas_are_refused() {
    // A version, and row groups without number.
    let endless = [int(1, 1), vec![0x39, 0xFC], varint(u64::MAX), vec![STOP]].concat();
    assert_eq!(check_footer(&endless), Err(Broken::CutOff));
    let schema = |depth: usize| {
        let group = [vec![0x48, 1, b'a'], int(1, 1), vec![STOP]].concat();
        let leaf = vec![0x48, 1, b'a', STOP];
        let list = [vec![0x29, 0xFC], varint(depth as u64 + 1)].concat();
        [list, group.repeat(depth), leaf, vec![STOP]].concat()
    };
    assert_eq!(check_footer(&schema(60)), Ok(()));
    assert_eq!(check_footer(&schema(70)), Err(Broken::Wrong));
    // A list in a list, without end.
    assert_eq!(check_footer(&[vec![0x99], vec![0x19; 100]].concat()), Err(Broken::Wrong));
}
