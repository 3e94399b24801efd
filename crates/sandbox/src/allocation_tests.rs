//! What runs between fork and exec does not allocate: another thread may have held the allocator's lock at the fork.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::landlock::{self, FileAccess, Ruleset};
use crate::seccomp::{self, ExecutableMemory, SyscallPermissions};
use crate::sys;

struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What `act` gives, and how often it called the allocator.
fn counted<T>(act: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATIONS.with(Cell::get);
    let given = act();
    (given, ALLOCATIONS.with(Cell::get) - before)
}

/// Both bind the calling thread alone, which ends here.
#[test]
fn landlock_and_seccomp_do_not_allocate_when_they_are_enforced() {
    let restricted = std::thread::spawn(|| {
        if landlock::abi().is_some() {
            let mut rules = Ruleset::default();
            rules.allow(c"/usr", FileAccess::Read, true);
            rules.allow(c"/dev/null", FileAccess::Use, false);
            rules.allow(c"/tmp", FileAccess::Write, true);
            rules.allow(c"/nonexistent", FileAccess::Read, true);
            let (enforced, allocations) = counted(|| rules.enforce());
            enforced.unwrap();
            assert_eq!(allocations, 0, "landlock");
            let open = |path| sys::open(path, libc::O_RDONLY).is_ok();
            assert!(open(c"/usr") && !open(c"/etc/passwd"));
        }
        let filter = seccomp::filter(SyscallPermissions {
            namespaces: false,
            unix_sockets: false,
            processes: true,
            executable_memory: ExecutableMemory::Generated,
        })
        .unwrap();
        let (installed, allocations) = counted(|| sys::seccomp(&filter));
        installed.unwrap();
        assert_eq!(allocations, 0, "seccomp");
        assert!(!sys::can_make_socket(libc::AF_UNIX));
    });
    restricted.join().unwrap();
}
