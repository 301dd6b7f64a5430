//! The instructions of a pickle: those that are read, by name, and the names of the others for messages.

/// One name for the instructions that are read.
macro_rules! opcodes {
    ($($name:ident = $code:literal,)*) => {
        $(
            #[doc = concat!("The instruction ", stringify!($name), ".")]
            pub const $name: u8 = $code;
        )*

        /// The name of an instruction.
        pub(super) fn name(code: u8) -> String {
            match code {
                $($code => stringify!($name).into(),)*
                _ => match unread(code) {
                    Some(name) => name.into(),
                    None => format!("{code:#04x}"),
                },
            }
        }
    };
}

opcodes! {
    MARK = b'(',
    EMPTY_TUPLE = b')',
    STOP = b'.',
    POP = b'0',
    POP_MARK = b'1',
    BINBYTES = b'B',
    SHORT_BINBYTES = b'C',
    BINFLOAT = b'G',
    BININT = b'J',
    BININT1 = b'K',
    BININT2 = b'M',
    NONE = b'N',
    BINPERSID = b'Q',
    REDUCE = b'R',
    BINSTRING = b'T',
    SHORT_BINSTRING = b'U',
    BINUNICODE = b'X',
    EMPTY_LIST = b']',
    APPEND = b'a',
    BUILD = b'b',
    GLOBAL = b'c',
    DICT = b'd',
    APPENDS = b'e',
    BINGET = b'h',
    LONG_BINGET = b'j',
    LIST = b'l',
    BINPUT = b'q',
    LONG_BINPUT = b'r',
    SETITEM = b's',
    TUPLE = b't',
    SETITEMS = b'u',
    EMPTY_DICT = b'}',
    PROTO = 0x80,
    NEWOBJ = 0x81,
    TUPLE1 = 0x85,
    TUPLE2 = 0x86,
    TUPLE3 = 0x87,
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    LONG1 = 0x8a,
    LONG4 = 0x8b,
    SHORT_BINUNICODE = 0x8c,
    BINUNICODE8 = 0x8d,
    BINBYTES8 = 0x8e,
    EMPTY_SET = 0x8f,
    ADDITEMS = 0x90,
    FROZENSET = 0x91,
    NEWOBJ_EX = 0x92,
    STACK_GLOBAL = 0x93,
    MEMOIZE = 0x94,
    FRAME = 0x95,
    BYTEARRAY8 = 0x96,
}

/// Opcodes that exist and are not supported: text forms that no program writes into files of weights, classes by
/// number, copies on the stack, and out-of-band buffers.
fn unread(code: u8) -> Option<&'static str> {
    Some(match code {
        b'2' => "DUP",
        b'F' => "FLOAT",
        b'I' => "INT",
        b'L' => "LONG",
        b'P' => "PERSID",
        b'S' => "STRING",
        b'V' => "UNICODE",
        b'g' => "GET",
        b'i' => "INST",
        b'o' => "OBJ",
        b'p' => "PUT",
        0x82 => "EXT1",
        0x83 => "EXT2",
        0x84 => "EXT4",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        _ => return None,
    })
}

/// Whether an instruction pushes a number, a text or bytes.
pub(super) fn is_scalar(code: u8) -> bool {
    length_bytes(code) != 0 || matches!(code, BININT | BININT1 | BININT2 | LONG1 | LONG4)
}

/// Bytes of the length that a text or bytes begin with; 0 for other instructions.
pub(super) fn length_bytes(code: u8) -> usize {
    match code {
        SHORT_BINBYTES | SHORT_BINSTRING | SHORT_BINUNICODE => 1,
        BINBYTES | BINSTRING | BINUNICODE => 4,
        BINBYTES8 | BINUNICODE8 | BYTEARRAY8 => 8,
        _ => 0,
    }
}

/// Whether an instruction makes or fills a tuple, list, dictionary or set.
pub(super) fn is_collection(code: u8) -> bool {
    let made = matches!(code, EMPTY_TUPLE | EMPTY_LIST | EMPTY_DICT | EMPTY_SET | FROZENSET | TUPLE | LIST | DICT);
    made || matches!(code, TUPLE1 | TUPLE2 | TUPLE3 | APPEND | APPENDS | ADDITEMS | SETITEM | SETITEMS)
}
