//! Handshake of the store: both sides prove that they know the job's token before either believes the other.
//!
//! The token itself is never sent. Each side sends a nonce; the proof is BLAKE3, keyed with the token, over the side
//! that speaks, both nonces and all fields of the client. Nothing after the handshake is signed or
//! encrypted: it keeps foreign processes out, it does not hide data. Called by `server` and `client`.

use super::frame::{Broken, Fields, Frame, Op};
use blake3::Hash;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Secret of a job, which lets a process in.
#[derive(Clone, Copy)]
pub struct Token([u8; 32]);

impl Token {
    /// From the name of a job and a secret, which may be empty.
    pub fn derive(job: &str, secret: &str) -> Self {
        let mut hash = blake3::Hasher::new_derive_key("bmtrain-dist 2026 rendezvous token of a job");
        for part in [job, secret] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        Token(*hash.finalize().as_bytes())
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Fresh random bytes.
pub(super) type Nonce = [u8; 32];

/// A short text for users: bytes of UTF-8, zeros after them.
pub(super) type Name = [u8; 32];

/// The text of a name, which another process has sent; harmless to print.
pub(super) fn text(name: &Name) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let text = String::from_utf8_lossy(&name[..end]);
    text.chars().map(|letter| if letter.is_ascii_graphic() { letter } else { '?' }).collect()
}

/// A name from a text, which is cut if it is too long.
pub(super) fn name(text: &str) -> Name {
    let mut name = [0; 32];
    let text = &text.as_bytes()[..text.floor_char_boundary(name.len())];
    name[..text.len()].copy_from_slice(text);
    name
}

/// The fields that identify a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub rank: u32,
    pub world: u32,
    pub recipe: [u8; 32],
    pub version: Name,
    pub host: Name,
    pub nonce: Nonce,
}

impl Hello {
    /// Bytes of a hello.
    pub(super) const SIZE: usize = 136;

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Hello::SIZE);
        bytes.extend(self.rank.to_le_bytes());
        bytes.extend(self.world.to_le_bytes());
        bytes.extend(self.recipe);
        bytes.extend(self.version);
        bytes.extend(self.host);
        bytes.extend(self.nonce);
        bytes
    }

    pub(super) fn from_frame(frame: &Frame) -> Result<Self, Broken> {
        let mut fields = Fields(&frame.body);
        let hello = || {
            let (rank, world) = (fields.u32()?, fields.u32()?);
            let (recipe, version) = (fields.bytes()?, fields.bytes()?);
            let (host, nonce) = (fields.bytes()?, fields.bytes()?);
            fields.0.is_empty().then_some(Hello { rank, world, recipe, version, host, nonce })
        };
        Some(hello).filter(|_| frame.op == Op::Hello).and_then(|mut hello| hello()).ok_or(Broken::Foreign)
    }
}

/// Side that speaks; a proof of one is none of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Server,
    Client,
}

/// Proof that only a process with the token can compute. Hashes are compared in constant time.
pub(super) fn proof(token: &Token, side: Side, hello: &Hello, server: &Nonce) -> Hash {
    let mut hash = blake3::Hasher::new_keyed(&token.0);
    hash.update(match side {
        Side::Server => b"server",
        Side::Client => b"client",
    });
    hash.update(&hello.to_bytes());
    hash.update(server);
    hash.finalize()
}

/// A fresh nonce. The standard library's hash maps are keyed with randomness of the operating system, which is all that
/// is wanted here; time, process and a counter see to it that no two are equal even without.
pub(super) fn nonce() -> Nonce {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hash = blake3::Hasher::new();
    for _ in 0..4 {
        hash.update(&RandomState::new().build_hasher().finish().to_le_bytes());
    }
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    hash.update(&time.as_nanos().to_le_bytes());
    hash.update(&std::process::id().to_le_bytes());
    hash.update(&COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    *hash.finalize().as_bytes()
}

/// Why a client stays out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It does not know the token.
    Token,
    /// It counts other ranks than this many.
    World(u32),
    /// It runs another recipe than this.
    Recipe([u8; 32]),
    /// It is another version of the program than this.
    Version(Name),
    /// Its rank is outside the world.
    Rank,
    /// A rank of that number is here, or was.
    Taken,
}

impl Refusal {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        match self {
            Refusal::Token => vec![1],
            Refusal::World(world) => [[2].as_slice(), &world.to_le_bytes()].concat(),
            Refusal::Recipe(recipe) => [[3].as_slice(), &recipe].concat(),
            Refusal::Version(version) => [[6].as_slice(), &version].concat(),
            Refusal::Rank => vec![4],
            Refusal::Taken => vec![5],
        }
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        Some(match fields.bytes()? {
            [1] => Refusal::Token,
            [2] => Refusal::World(fields.u32()?),
            [3] => Refusal::Recipe(fields.bytes()?),
            [4] => Refusal::Rank,
            [5] => Refusal::Taken,
            [6] => Refusal::Version(fields.bytes()?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello { rank: 3, world: 8, recipe: [7; 32], version: name("1.0"), host: name("a"), nonce: [9; 32] }
    }

    #[test]
    fn a_proof_depends_on_the_token_the_side_and_every_field() {
        let token = Token::derive("job", "");
        let base = proof(&token, Side::Client, &hello(), &[1; 32]);
        let others = [
            proof(&Token::derive("job2", ""), Side::Client, &hello(), &[1; 32]),
            proof(&Token::derive("job", "secret"), Side::Client, &hello(), &[1; 32]),
            proof(&Token::derive("", "job"), Side::Client, &hello(), &[1; 32]),
            proof(&token, Side::Server, &hello(), &[1; 32]),
            proof(&token, Side::Client, &hello(), &[2; 32]),
            proof(&token, Side::Client, &Hello { rank: 4, ..hello() }, &[1; 32]),
            proof(&token, Side::Client, &Hello { world: 4, ..hello() }, &[1; 32]),
            proof(&token, Side::Client, &Hello { recipe: [8; 32], ..hello() }, &[1; 32]),
            proof(&token, Side::Client, &Hello { version: name("1.1"), ..hello() }, &[1; 32]),
            proof(&token, Side::Client, &Hello { host: name("b"), ..hello() }, &[1; 32]),
            proof(&token, Side::Client, &Hello { nonce: [8; 32], ..hello() }, &[1; 32]),
        ];
        assert!(others.iter().all(|other| *other != base));
        assert_eq!(proof(&token, Side::Client, &hello(), &[1; 32]), base);
    }

    #[test]
    fn nonces_do_not_repeat() {
        let nonces: std::collections::HashSet<Nonce> = (0..1000).map(|_| nonce()).collect();
        assert_eq!(nonces.len(), 1000);
    }

    #[test]
    fn a_hello_of_any_other_length_is_none() {
        let bytes = hello().to_bytes();
        assert_eq!(bytes.len(), Hello::SIZE);
        let read = |body: &[u8]| Hello::from_frame(&Frame { op: Op::Hello, body: body.to_vec() });
        assert_eq!(read(&bytes), Ok(hello()));
        assert!(read(&bytes[1..]).is_err() && read(&[bytes.as_slice(), &[0]].concat()).is_err() && read(&[]).is_err());
        assert!(Hello::from_frame(&Frame { op: Op::Proof, body: bytes }).is_err());
    }

    #[test]
    fn a_token_does_not_show_itself() {
        assert_eq!(format!("{:?}", Token::derive("job", "secret")), "Token(..)");
    }

    #[test]
    fn names_are_cut_and_harmless() {
        assert_eq!(text(&name("node7.example.org")), "node7.example.org");
        assert_eq!(text(&name(&"é".repeat(40))), "?".repeat(16));
        assert_eq!(text(&[0xff; 32]), "?".repeat(32));
        assert_eq!(text(&name("a\n\u{1b}[31m")), "a??[31m");
        assert_eq!(text(&[0; 32]), "");
    }

    #[test]
    fn refusals_survive_the_way() {
        let version = Refusal::Version(name("0.1.0"));
        for refusal in
            [Refusal::Token, Refusal::World(5), Refusal::Recipe([3; 32]), version, Refusal::Rank, Refusal::Taken]
        {
            assert_eq!(Refusal::from_bytes(&refusal.to_bytes()), Some(refusal));
        }
        assert_eq!(Refusal::from_bytes(&[]), None);
        assert_eq!(Refusal::from_bytes(&[2, 1]), None);
    }
}
