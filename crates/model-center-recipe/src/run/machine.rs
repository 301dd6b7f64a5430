//! Machine of a run, and the commit of the repository that its directory is in.
//!
//! Defines [`Machine`] and [`commit_of`].

use bmtrain_core::cpu::{InstructionSet, Processors};
use std::fs;
use std::path::{Path, PathBuf};

/// The most bytes of a file that is read here.
const MAX_BYTES: u64 = 1 << 20;

/// A machine as a report shows it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Machine {
    /// Name of the processor, if the system provides it.
    pub processor: Option<String>,
    /// The instruction set that kernels use.
    pub instruction_set: String,
    /// Physical cores that this process may use.
    pub cores: u64,
    /// Memory of the machine, bytes, if the system provides it.
    pub memory_bytes: Option<u64>,
    /// The CUDA device of the first rank.
    pub cuda: Option<String>,
}

impl Machine {
    /// This machine.
    pub fn here(instruction_set: InstructionSet, cuda: Option<String>) -> Self {
        let processor = text_of("/proc/cpuinfo").and_then(|text| value_of(&text, "model name"));
        let memory = text_of("/proc/meminfo").and_then(|text| value_of(&text, "MemTotal"));
        let kibibytes = memory.and_then(|text| text.trim_end_matches("kB").trim().parse::<u64>().ok());
        Machine {
            processor,
            instruction_set: instruction_set.to_string(),
            cores: Processors::of_this_process().default_threads() as u64,
            memory_bytes: kibibytes.map(|kibibytes| 1024 * kibibytes),
            cuda,
        }
    }
}

/// The value of the first line `name : value`.
fn value_of(text: &str, name: &str) -> Option<String> {
    let values = text.lines().filter_map(|line| line.split_once(':'));
    let value = values.into_iter().find(|(known, _)| known.trim() == name)?.1.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// The commit that the git repository around a directory is at, from its files; `None` outside of a repository and
/// before the first commit.
pub fn commit_of(directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    let git = directory.ancestors().find_map(git_directory)?;
    let head = text_of(git.join("HEAD"))?;
    let Some(name) = head.trim().strip_prefix("ref: ") else { return hash(&head) };
    // Of a linked worktree the branches are in the repository's own directory.
    let shared = text_of(git.join("commondir")).map(|path| git.join(path.trim()));
    let places = || std::iter::once(&git).chain(&shared);
    let is_plain = name.starts_with("refs/") && !name.split('/').any(|part| part == "..");
    let loose = is_plain.then(|| places().find_map(|place| hash(&text_of(place.join(name))?)))?;
    let packed = || {
        places().find_map(|place| {
            let text = text_of(place.join("packed-refs"))?;
            let line = text.lines().find(|line| line.split_once(' ').is_some_and(|(_, packed)| packed == name))?;
            hash(line.split_once(' ')?.0)
        })
    };
    loose.or_else(packed)
}

/// The directory with the state of a repository whose root this is.
fn git_directory(root: &Path) -> Option<PathBuf> {
    let git = root.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    // A linked worktree.
    let path = text_of(&git)?.trim().strip_prefix("gitdir: ").map(PathBuf::from)?;
    Some(root.join(path))
}

fn hash(text: &str) -> Option<String> {
    let text = text.trim();
    let is_hash = matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| text.to_owned())
}

fn text_of(path: impl AsRef<Path>) -> Option<String> {
    let path = path.as_ref();
    let found = fs::metadata(path).ok()?;
    if !found.is_file() || found.len() > MAX_BYTES {
        return None;
    }
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "0123456789abcdef0123456789abcdef01234567";
    const SECOND: &str = "89abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn the_commit_is_found_from_branches_packed_ones_and_worktrees() {
        let scratch = tempfile::tempdir().unwrap();
        let (root, write) = (scratch.path(), |name: &str, text: &str| {
            let path = scratch.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        });
        fs::create_dir_all(root.join("code/runs/first")).unwrap();
        let of = |name: &str| commit_of(&root.join(name));
        assert_eq!(of("code/runs/first"), None);
        write("code/.git/HEAD", "ref: refs/heads/main\n");
        assert_eq!(of("code"), None, "before the first commit");
        write("code/.git/packed-refs", &format!("# pack-refs\n{FIRST} refs/heads/main\n^{SECOND}\n"));
        assert_eq!(of("code/runs/first").as_deref(), Some(FIRST));
        write("code/.git/refs/heads/main", &format!("{SECOND}\n"));
        assert_eq!(of("code/runs/first").as_deref(), Some(SECOND));
        write("other/.git", "gitdir: ../code/.git/worktrees/other\n");
        write("code/.git/worktrees/other/HEAD", "ref: refs/heads/main\n");
        write("code/.git/worktrees/other/commondir", "../..\n");
        assert_eq!(of("other").as_deref(), Some(SECOND));
        write("code/.git/HEAD", &format!("{FIRST}\n"));
        assert_eq!(of("code").as_deref(), Some(FIRST));
        write("code/.git/HEAD", "ref: refs/../../../secret\n");
        assert_eq!(of("code"), None);
    }

    #[test]
    fn this_machine_has_cores_and_values_are_trimmed() {
        let here = Machine::here(InstructionSet::Portable, None);
        assert!(here.cores >= 1 && here.instruction_set == "portable", "{here:?}");
        assert_eq!(value_of("a: 1\nmodel name\t: A  chip \n", "model name").as_deref(), Some("A  chip"));
    }
}
