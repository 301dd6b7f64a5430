//! Panics of other libraries that are caught and returned as errors.
//!
//! Some libraries panic on input from outside: a tokenizer file, a driver that lacks a function. [`catch`] turns such a
//! panic into a value. By then Rust's panic hook has written the panic to standard error, with a backtrace where one is
//! asked for, although nothing is wrong with the program. [`silence_caught`] ends that.
//!
//! The hook belongs to the process and therefore to the program: a library that replaced it on its own would also
//! replace the hook of a test harness, or of a service that reports its panics. So [`catch`] only marks its thread, and
//! a program that wants silence calls [`silence_caught`] once. Panics outside of [`catch`], and all panics on other
//! threads, go to the hook that was there before.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Number of nested calls of [`catch`] of this thread.
    static CATCHING: Cell<usize> = const { Cell::new(0) };
}

/// Runs `call`; a panic of it becomes its message.
///
/// For calls into other libraries that panic on malformed input; a panic of our own code is a defect to be
/// seen. What `call` changes has to be dropped, or usable, after it ended in the middle. A thread that `call` starts is
/// not marked.
pub fn catch<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    struct Mark;
    impl Drop for Mark {
        fn drop(&mut self) {
            CATCHING.with(|calls| calls.set(calls.get() - 1));
        }
    }
    CATCHING.with(|calls| calls.set(calls.get() + 1));
    let mark = Mark;
    let result = catch_unwind(AssertUnwindSafe(call));
    drop(mark);
    result.map_err(|panic| message(&*panic))
}

/// Wraps the present panic hook by one that is silent about panics that [`catch`] catches. A second call
/// changes nothing.
pub fn silence_caught() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let present = take_hook();
        set_hook(Box::new(move |panic| {
            // A thread that ends may have no mark any more; it is in no call then.
            if !CATCHING.try_with(|calls| calls.get() > 0).unwrap_or(false) {
                present(panic);
            }
        }));
    });
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_panic_becomes_its_message_and_only_those_outside_reach_the_hook() {
        static SEEN: AtomicUsize = AtomicUsize::new(0);
        // The other tests of this process keep the hook of the test harness.
        let harness = take_hook();
        set_hook(Box::new(move |panic| {
            if message(panic.payload()).starts_with("test of panics") {
                SEEN.fetch_add(1, Ordering::SeqCst);
            } else {
                harness(panic);
            }
        }));
        silence_caught();
        silence_caught();
        assert_eq!(catch(|| 7), Ok(7));
        assert_eq!(catch(|| panic!("test of panics {}", 1)), Err::<(), _>("test of panics 1".to_owned()));
        // One within another leaves the outer one marked.
        let nested = catch(|| {
            assert!(catch(|| panic!("test of panics 2")).is_err());
            panic!("test of panics 3");
        });
        assert_eq!(nested, Err::<(), _>("test of panics 3".to_owned()));
        assert_eq!(SEEN.load(Ordering::SeqCst), 0);
        assert!(catch_unwind(|| panic!("test of panics 4")).is_err());
        assert_eq!(SEEN.load(Ordering::SeqCst), 1);
        assert!(std::thread::spawn(|| panic!("test of panics 5")).join().is_err());
        assert_eq!(SEEN.load(Ordering::SeqCst), 2);
    }
}
