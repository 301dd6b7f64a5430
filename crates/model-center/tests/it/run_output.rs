//! Output directories: what they accept, what they refuse, and their contents after a run.

use model_center::run::{
    Earlier, FileHashes, IfThere, MARKER, OutputDirectory, StopReason, layout_error, render_error,
};
use std::path::{Path, PathBuf};

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn refusal(dir: &Path, hash: &str, if_there: IfThere) -> String {
    let checked = layout_error(&OutputDirectory::check(dir, hash, if_there).unwrap_err());
    let created = layout_error(&OutputDirectory::create(dir, hash, if_there).unwrap_err());
    assert_eq!(checked, created);
    created
}

#[test]
fn a_new_directory_is_created_with_its_parents_and_marked() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("a/b");
    OutputDirectory::check(&dir, HASH, IfThere::Refuse).unwrap();
    assert!(!temp.path().join("a").exists(), "check must not create anything");
    let mut directory = OutputDirectory::create(&dir, HASH, IfThere::Refuse).unwrap();
    directory.write("recipe.toml", b"x = 1\n").unwrap();
    drop(directory);
    assert_eq!(names(&dir), ["recipe.toml", MARKER]);
    let marker = format!(
        "{{\n  \"format\": 1,\n  \"recipe_hash\": \"{HASH}\",\n  \"finished\": false,\n  \
         \"names\": [\n    \"recipe.toml\"\n  ]\n}}\n"
    );
    assert_eq!(std::fs::read_to_string(dir.join(MARKER)).unwrap(), marker);
}

#[test]
fn the_same_recipe_is_offered_overwrite_which_removes_only_the_run() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let mut directory = OutputDirectory::create(dir, HASH, IfThere::Refuse).unwrap();
    directory.write("recipe.toml", b"x").unwrap();
    drop(directory.metrics("metrics.jsonl").unwrap());
    let staged = directory.stage("model").unwrap();
    std::fs::write(staged.path().join("config.json"), "{}").unwrap();
    staged.commit().unwrap();
    drop(directory);
    std::fs::write(dir.join("notes.txt"), "mine").unwrap();
    let expected = format!(
        "error[output]: the output directory already holds a run of this recipe, 0123456789ab\n  --> {}\n  \
         fix: add --overwrite to replace it, or set output.dir to another directory",
        dir.display()
    );
    assert_eq!(refusal(dir, HASH, IfThere::Refuse), expected);
    assert_eq!(names(dir), ["metrics.jsonl", "model", "notes.txt", "recipe.toml", MARKER]);
    let directory = OutputDirectory::create(dir, HASH, IfThere::Replace).unwrap();
    drop(directory);
    assert_eq!(names(dir), ["notes.txt", MARKER]);
}

#[test]
fn the_run_of_another_recipe_is_never_replaced() {
    let temp = tempfile::tempdir().unwrap();
    drop(OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap());
    let expected = format!(
        "error[output]: the output directory holds the run of another recipe: 0123456789ab there, fedcba987654 here\n  \
         --> {}\n  fix: set output.dir to another directory, or remove this one yourself",
        temp.path().display()
    );
    assert_eq!(refusal(temp.path(), OTHER, IfThere::Refuse), expected);
    let replaced = format!("{expected}: a run is replaced by one with the same settings alone");
    assert_eq!(refusal(temp.path(), OTHER, IfThere::Replace), replaced);
}

#[test]
fn a_directory_with_foreign_files_is_refused_and_untouched() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("thesis.tex"), "years of work").unwrap();
    for if_there in [IfThere::Refuse, IfThere::Replace] {
        let text = refusal(temp.path(), HASH, if_there);
        assert!(
            text.starts_with(
                "error[output]: the output directory is not empty and holds no run: \"thesis.tex\" is in it\n"
            ),
            "{text}"
        );
    }
    assert_eq!(names(temp.path()), ["thesis.tex"]);
}

#[test]
fn read_only_and_impossible_directories_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("ro");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o555)).unwrap();
    for asked in [dir.clone(), dir.join("below")] {
        let expected = format!(
            "error[file]: cannot write to the output directory: permission denied\n  --> {}\n  fix: set \
             output.dir to a directory you may write to, on a disk with room",
            asked.display()
        );
        assert_eq!(refusal(&asked, HASH, IfThere::Refuse), expected);
    }
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(names(&dir).is_empty());
    let file = temp.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(refusal(&file, HASH, IfThere::Refuse).starts_with("error[output]: the output directory is a file\n"));
    assert!(refusal(&file.join("below"), HASH, IfThere::Refuse).starts_with("error[file]: cannot "));
}

#[test]
fn a_damaged_or_hostile_marker_is_refused_and_removes_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let victim = temp.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let dir = temp.path().join("out");
    std::fs::create_dir(&dir).unwrap();
    let with_name = |name: &str| format!("{{\"format\":1,\"recipe_hash\":\"{HASH}\",\"names\":[{name:?}]}}");
    let cases = [
        String::new(),
        "{".into(),
        "[".repeat(100_000),
        "{\"format\":2,\"recipe_hash\":\"\",\"names\":[]}".into(),
        with_name("../victim"),
        with_name(".."),
        with_name(victim.to_str().unwrap()),
        with_name(MARKER),
        with_name("thesis.tex"),
        with_name("chapters"),
        format!("{{\"format\":1,\"recipe_hash\":\"{HASH}\",\"names\":[],\"models\":{{\"other\":{{}}}}}}"),
        format!(
            "{{\"format\":1,\"recipe_hash\":\"{HASH}\",\"names\":[],\"models\":{{\"model\":{{\"../victim\":\
             {{\"bytes\":8,\"blake3\":\"{HASH}\"}}}}}}}}"
        ),
    ];
    std::fs::write(dir.join("thesis.tex"), "years of work").unwrap();
    std::fs::create_dir(dir.join("chapters")).unwrap();
    for text in cases {
        std::fs::write(dir.join(MARKER), &text).unwrap();
        let refused = refusal(&dir, HASH, IfThere::Replace);
        let is_named = refused.contains("the mark of an earlier run cannot be read: ")
            || refused.contains("the metrics file is a directory, not a regular file");
        assert!(refused.starts_with("error[output]: ") && is_named, "{refused}");
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert_eq!(std::fs::read(dir.join("thesis.tex")).unwrap(), b"years of work");
    }
}

#[test]
fn overwriting_removes_a_link_and_not_what_it_leads_to() {
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("target");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("kept"), "x").unwrap();
    let dir = temp.path().join("out");
    let mut directory = OutputDirectory::create(&dir, HASH, IfThere::Refuse).unwrap();
    directory.stage("model").unwrap().commit().unwrap();
    drop(directory);
    std::fs::remove_dir(dir.join("model")).unwrap();
    std::os::unix::fs::symlink(&target, dir.join("model")).unwrap();
    drop(OutputDirectory::create(&dir, HASH, IfThere::Replace).unwrap());
    assert_eq!(names(&dir), [MARKER]);
    assert_eq!(names(&target), ["kept"]);
}

#[test]
fn two_processes_cannot_share_a_directory() {
    let temp = tempfile::tempdir().unwrap();
    let directory = OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap();
    let text = layout_error(&OutputDirectory::create(temp.path(), HASH, IfThere::Replace).unwrap_err());
    assert!(text.starts_with("error[output]: the output directory is in use by another process\n"), "{text}");
    drop(directory);
    OutputDirectory::create(temp.path(), HASH, IfThere::Replace).unwrap();
}

#[test]
fn leftovers_of_a_killed_process_do_not_interfere() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join(".lock"), "").unwrap();
    std::fs::write(temp.path().join(".run.json.tmp-99999-0"), "{\"form").unwrap();
    let mut directory = OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap();
    assert_eq!(names(temp.path()), [".lock", MARKER]);
    // Killed while a model was saved.
    std::mem::forget(directory.stage("model").unwrap());
    drop(directory);
    assert_eq!(names(temp.path()).len(), 2);
    drop(OutputDirectory::create(temp.path(), HASH, IfThere::Replace).unwrap());
    assert_eq!(names(temp.path()), [MARKER]);
}

fn make_pipe(path: PathBuf) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
}

#[test]
fn a_foreign_file_at_the_lock_path_is_named_without_waiting() {
    for (what, make) in [
        ("a pipe", Box::new(make_pipe) as Box<dyn Fn(PathBuf)>),
        ("a directory", Box::new(|path| std::fs::create_dir(path).unwrap())),
        ("a symbolic link", Box::new(|path| std::os::unix::fs::symlink("elsewhere", path).unwrap())),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let lock = temp.path().join(".lock");
        make(lock.clone());
        let error = layout_error(&OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap_err());
        let expected = format!(
            "error[file]: cannot lock the output directory: the lock is {what}, not a regular file\n  --> {}\n  \
             fix: remove it",
            lock.display()
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn a_foreign_file_at_the_metrics_path_is_named_without_waiting() {
    let resume = IfThere::Continue { accept_change: false };
    for is_pipe in [true, false] {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("metrics.jsonl");
        let mut directory = OutputDirectory::create(temp.path(), HASH, resume).unwrap();
        drop(directory.metrics("metrics.jsonl").unwrap());
        std::fs::remove_file(&path).unwrap();
        if is_pipe {
            make_pipe(path.clone())
        } else {
            std::fs::create_dir(&path).unwrap()
        }
        let what = if is_pipe { "a pipe" } else { "a directory" };
        let expected = format!(
            "error[output]: the metrics file is {what}, not a regular file\n  --> {}\n  \
             fix: remove it, or set log.metrics to another name",
            path.display()
        );
        assert_eq!(layout_error(&directory.metrics("metrics.jsonl").unwrap_err()), expected);
        drop(directory);
        for if_there in [resume, IfThere::Replace] {
            assert_eq!(refusal(temp.path(), HASH, if_there), expected);
        }
        assert!(path.exists());
    }
}

#[test]
fn only_a_file_that_begins_as_metrics_is_removed_under_a_free_name() {
    let temp = tempfile::tempdir().unwrap();
    let mut directory = OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap();
    drop(directory.metrics("losses.jsonl").unwrap());
    drop(directory);
    let path = temp.path().join("losses.jsonl");
    std::fs::write(&path, "my own notes").unwrap();
    let text = refusal(temp.path(), HASH, IfThere::Replace);
    assert!(text.contains("it lists \"losses.jsonl\", which is not an output of a run: nothing was removed"), "{text}");
    // A run that goes on without a checkpoint begins anew, which removes as well.
    let mut directory = OutputDirectory::create(temp.path(), HASH, IfThere::Continue { accept_change: false }).unwrap();
    assert!(layout_error(&directory.begin_anew().unwrap_err()).contains("nothing was removed"));
    drop(directory);
    for text in ["{\"kind\":\"start\"}\n", "{\"ki", ""] {
        std::fs::write(&path, text).unwrap();
        let mut directory = OutputDirectory::create(temp.path(), HASH, IfThere::Replace).unwrap();
        assert!(!path.exists());
        drop(directory.metrics("losses.jsonl").unwrap());
    }
}

#[test]
fn an_output_never_replaces_a_file_that_the_run_did_not_write() {
    let temp = tempfile::tempdir().unwrap();
    let mut directory = OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap();
    for name in ["recipe.toml", "metrics.jsonl", "model"] {
        std::fs::write(temp.path().join(name), "mine").unwrap();
    }
    let errors = [
        layout_error(&directory.write("recipe.toml", b"x").unwrap_err()),
        layout_error(&directory.metrics("metrics.jsonl").unwrap_err()),
        layout_error(&directory.stage("model").unwrap_err()),
    ];
    for error in errors {
        assert!(error.contains("this is there already, and run.json does not list it"), "{error}");
    }
    for name in ["recipe.toml", "metrics.jsonl", "model"] {
        assert_eq!(std::fs::read(temp.path().join(name)).unwrap(), b"mine");
    }
}

#[test]
fn a_damaged_recipe_hash_is_not_taken_for_another_recipe() {
    let temp = tempfile::tempdir().unwrap();
    drop(OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap());
    let marker = temp.path().join(MARKER);
    let text = std::fs::read_to_string(&marker).unwrap();
    for (changed, reason) in [
        (
            format!("{}0", &HASH[..63]),
            "its recipe hash begins like this recipe's, 0123456789ab, and differs after that",
        ),
        (format!("{HASH}0"), "its recipe hash is not 64 lower-case hexadecimal digits"),
        (HASH.to_uppercase(), "its recipe hash is not 64 lower-case hexadecimal digits"),
    ] {
        std::fs::write(&marker, text.replace(HASH, &changed)).unwrap();
        let message = refusal(temp.path(), HASH, IfThere::Continue { accept_change: false });
        assert!(message.starts_with(&format!("error[output]: run.json is damaged: {reason}\n")), "{message}");
    }
}

#[test]
fn a_model_is_recorded_checked_and_forgotten() {
    let temp = tempfile::tempdir().unwrap();
    let resume = IfThere::Continue { accept_change: false };
    let mut directory = OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap();
    let staged = directory.stage("model").unwrap();
    std::fs::write(staged.path().join("config.json"), "{}").unwrap();
    let hashes = FileHashes::of(staged.path()).unwrap();
    staged.commit().unwrap();
    directory.record_model("model", hashes.clone(), Some(7)).unwrap();
    drop(directory);
    let mut directory = OutputDirectory::create(temp.path(), HASH, resume).unwrap();
    assert_eq!((directory.best_step(), directory.model("model")), (Some(7), Some(&hashes)));
    assert_eq!(directory.model_damage("model").unwrap(), None);
    assert_eq!(OutputDirectory::check_models(temp.path()).unwrap(), None);
    let config = temp.path().join("model/config.json");
    std::fs::write(&config, "[]").unwrap();
    let damage = directory.model_damage("model").unwrap().unwrap();
    assert_eq!((damage.path.clone(), damage.reason.contains("hash differs")), (config, true));
    assert_eq!(OutputDirectory::check_models(temp.path()).unwrap(), Some(damage.clone()));
    let error = damage.into_error("put it back");
    assert_eq!(error.exit_code(), 4);
    assert!(render_error(&error).starts_with("error[checkpoint]: the file is not as it was written"));
    directory.forget_model("model").unwrap();
    assert_eq!((directory.best_step(), directory.model("model")), (None, None));
}

#[test]
fn preparations_that_are_not_the_runs_own_are_kept() {
    let temp = tempfile::tempdir().unwrap();
    let mut directory = OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap();
    directory.stage("model").unwrap().commit().unwrap();
    drop(directory);
    let foreign = [".model.tmp-1", ".other.tmp-1-1", ".x.tmp-99999"];
    for name in foreign {
        std::fs::write(temp.path().join(name), "mine").unwrap();
    }
    drop(OutputDirectory::create(temp.path(), HASH, IfThere::Replace).unwrap());
    assert_eq!(names(temp.path()), [&foreign[..], &[MARKER]].concat());
    // Without a marker they belong to no run.
    std::fs::remove_file(temp.path().join(MARKER)).unwrap();
    for if_there in [IfThere::Refuse, IfThere::Replace] {
        let text = refusal(temp.path(), HASH, if_there);
        assert!(text.contains("holds no run: \".model.tmp-1\" is in it"), "{text}");
    }
    assert_eq!(names(temp.path()), foreign);
}

#[test]
fn a_directory_never_takes_the_place_of_a_file_of_the_run() {
    let temp = tempfile::tempdir().unwrap();
    let mut directory = OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap();
    directory.write("model", b"figures").unwrap();
    let error = layout_error(&directory.stage("model").unwrap_err());
    assert!(error.contains("a file of the run has this name"), "{error}");
    assert_eq!(std::fs::read(temp.path().join("model")).unwrap(), b"figures");
}

#[test]
fn a_staged_directory_appears_whole_or_not_at_all() {
    let temp = tempfile::tempdir().unwrap();
    let mut directory = OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap();
    let fill = |path: &Path, text: &str| std::fs::write(path.join("weights"), text).unwrap();
    let staged = directory.stage("model").unwrap();
    fill(staged.path(), "one");
    assert!(!temp.path().join("model").exists());
    assert_eq!(staged.commit().unwrap(), temp.path().join("model"));
    let staged = directory.stage("model").unwrap();
    fill(staged.path(), "half");
    drop(staged);
    assert_eq!(std::fs::read_to_string(temp.path().join("model/weights")).unwrap(), "one");
    let staged = directory.stage("model").unwrap();
    fill(staged.path(), "two");
    staged.commit().unwrap();
    assert_eq!(std::fs::read_to_string(temp.path().join("model/weights")).unwrap(), "two");
    drop(directory);
    assert_eq!(names(temp.path()), ["model", MARKER]);
}

#[test]
fn output_names_cannot_leave_the_directory() {
    let temp = tempfile::tempdir().unwrap();
    let mut directory = OutputDirectory::create(&temp.path().join("out"), HASH, IfThere::Refuse).unwrap();
    for name in ["../x", "/tmp/x", "", ".", "..", "a/b", MARKER, ".lock", ".x.tmp-1"] {
        assert!(directory.write(name, b"").is_err(), "{name:?}");
        assert!(directory.stage(name).is_err(), "{name:?}");
    }
    assert_eq!(names(temp.path()), ["out"]);
}

#[test]
fn output_paths_are_returned_as_they_are() {
    let temp = tempfile::tempdir().unwrap();
    let mut directory = OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap();
    assert_eq!(directory.path(), temp.path());
    let path: PathBuf = directory.write("a.txt", b"1").unwrap();
    assert_eq!(std::fs::read(path).unwrap(), b"1");
}

#[test]
fn a_run_is_continued_with_all_it_left_but_what_was_being_prepared() {
    let temp = tempfile::tempdir().unwrap();
    let resume = IfThere::Continue { accept_change: false };
    let mut directory = OutputDirectory::create(temp.path(), HASH, resume).unwrap();
    assert_eq!(directory.earlier(), Earlier::Nothing);
    directory.write("recipe.toml", b"x").unwrap();
    drop(directory.metrics("metrics.jsonl").unwrap());
    std::fs::write(temp.path().join("metrics.jsonl"), "{\"kind\":\"step\"}\n{\"kind\":\"st").unwrap();
    let staged = directory.stage("model").unwrap();
    std::fs::write(staged.path().join("config.json"), "{}").unwrap();
    // As a killed process leaves it.
    std::mem::forget(staged);
    drop(directory);
    assert_eq!(OutputDirectory::check(temp.path(), HASH, resume).unwrap(), Earlier::Unfinished);
    let mut directory = OutputDirectory::create(temp.path(), HASH, resume).unwrap();
    assert_eq!(directory.earlier(), Earlier::Unfinished);
    drop(directory.metrics("metrics.jsonl").unwrap());
    let metrics = std::fs::read_to_string(temp.path().join("metrics.jsonl")).unwrap();
    assert_eq!(metrics, "{\"kind\":\"step\"}\n", "a line that was cut off is removed, the others stay");
    directory.finish(8, StopReason::Steps).unwrap();
    drop(directory);
    assert_eq!(names(temp.path()), ["metrics.jsonl", "recipe.toml", MARKER]);
    assert_eq!(OutputDirectory::check(temp.path(), HASH, resume).unwrap(), Earlier::Finished);
    let mut directory = OutputDirectory::create(temp.path(), HASH, resume).unwrap();
    directory.begin_anew().unwrap();
    drop(directory);
    assert_eq!(names(temp.path()), [MARKER]);
}

#[test]
fn a_run_of_another_recipe_is_continued_only_where_that_is_asked_for() {
    let temp = tempfile::tempdir().unwrap();
    drop(OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap());
    let text = refusal(temp.path(), OTHER, IfThere::Continue { accept_change: false });
    assert!(text.contains("the run of another recipe") && text.contains("--accept-change"), "{text}");
    let accepted = IfThere::Continue { accept_change: true };
    let mut directory = OutputDirectory::create(temp.path(), OTHER, accepted).unwrap();
    assert_eq!(directory.earlier(), Earlier::Unfinished);
    // It is the earlier recipe's until there is something to go on with.
    assert!(OutputDirectory::check(temp.path(), HASH, IfThere::Replace).is_ok());
    directory.take_over().unwrap();
    drop(directory);
    assert_eq!(OutputDirectory::check(temp.path(), OTHER, IfThere::Replace).unwrap(), Earlier::Unfinished);
}
