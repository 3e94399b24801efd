//! The filters, interpreted.

use super::*;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// Interprets the instructions that occur; the oracle is the kernel's documented meaning of each.
fn decide(program: &[sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let word = |offset: u32| match offset {
        SYSCALL_NUMBER => number,
        ARCHITECTURE => architecture,
        // Arguments have 64 bits and lie from offset 16 on, the low half first.
        at if (at - 16) % 8 == 0 => arguments[(at as usize - 16) / 8] as u32,
        at => (arguments[(at as usize - 16) / 8] >> 32) as u32,
    };
    let (mut at, mut value) = (0, 0);
    loop {
        let step = &program[at];
        at += 1;
        let test = match u32::from(step.code) {
            0x20 => {
                value = word(step.k);
                continue;
            }
            0x54 => {
                value &= step.k;
                continue;
            }
            0x05 => {
                at += step.k as usize;
                continue;
            }
            0x15 => value == step.k,
            0x25 => value > step.k,
            0x35 => value >= step.k,
            0x06 => return step.k,
            other => panic!("unknown instruction {other:#x}"),
        };
        at += usize::from(if test { step.jt } else { step.jf });
    }
}

fn answer<const N: usize>(program: &[sock_filter], number: c_long, arguments: [u64; N]) -> u32 {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    decide(program, AUDIT_ARCH, number as u32, all)
}

fn build(
    namespaces: bool,
    unix_sockets: bool,
    processes: bool,
    executable_memory: ExecutableMemory,
) -> BpfProgram {
    filter(SyscallPermissions {
        namespaces,
        unix_sockets,
        processes,
        executable_memory,
    })
    .unwrap()
}

fn worker() -> BpfProgram {
    build(false, true, false, ExecutableMemory::FilesOnly)
}

fn nested() -> BpfProgram {
    build(true, true, true, ExecutableMemory::Generated)
}

#[test]
fn a_worker_makes_threads_but_no_processes_and_no_namespaces() {
    let worker = worker();
    let thread = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;
    assert_eq!(answer(&worker, libc::SYS_clone, [thread, 0]), ALLOW);
    assert_eq!(answer(&worker, libc::SYS_clone3, [0, 0]), NO_SUCH_CALL);
    for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNET, libc::CLONE_NEWNS] {
        assert_eq!(answer(&worker, libc::SYS_clone, [flag as u64, 0]), REFUSE);
        assert_eq!(answer(&worker, libc::SYS_unshare, [flag as u64, 0]), REFUSE);
    }
    assert_eq!(answer(&worker, libc::SYS_mount, [0, 0]), REFUSE);
    assert_eq!(answer(&worker, libc::SYS_read, [0, 0]), ALLOW);
    assert_eq!(answer(&worker, libc::SYS_ptrace, [0, 0]), REFUSE);
    assert_eq!(answer(&worker, libc::SYS_execve, [0, 0]), REFUSE);
    assert_eq!(answer(&worker, libc::SYS_execveat, [0, 0]), REFUSE);
    let process = libc::SIGCHLD as u64;
    assert_eq!(answer(&worker, libc::SYS_clone, [process, 0]), REFUSE);
}

#[test]
fn a_worker_executes_only_what_lies_in_files() {
    let worker = worker();
    let (read, execute) = (libc::PROT_READ as u64, libc::PROT_EXEC as u64);
    let (private, anonymous) = (libc::MAP_PRIVATE as u64, libc::MAP_ANONYMOUS as u64);
    let map = |rights, flags| answer(&worker, libc::SYS_mmap, [0, 4096, rights, flags]);
    assert_eq!(map(read, private | anonymous), ALLOW);
    assert_eq!(map(read | execute, private), ALLOW);
    assert_eq!(map(read | execute, private | anonymous), REFUSE);
    assert_eq!(map(libc::PROT_WRITE as u64 | execute, private), REFUSE);
    let protect = |rights| answer(&worker, libc::SYS_mprotect, [0, 4096, rights]);
    assert_eq!(protect(read), ALLOW);
    assert_eq!(protect(read | execute), REFUSE);
    assert_eq!(answer(&worker, libc::SYS_memfd_create, [0, 0]), REFUSE);
    assert_eq!(
        answer(&worker, libc::SYS_shmat, [0, 0, SHM_EXEC.into()]),
        REFUSE
    );
    let opened = nested();
    assert_eq!(answer(&opened, libc::SYS_memfd_create, [0, 0]), ALLOW);
}

/// A worker that is stopped between calls stays stopped until the judge continues it.
#[test]
fn a_worker_cannot_have_itself_continued() {
    let worker = worker();
    assert_eq!(answer(&worker, libc::SYS_timer_create, [0, 0]), REFUSE);
    assert_eq!(answer(&worker, libc::SYS_mq_notify, [0, 0]), REFUSE);
    assert_eq!(
        answer(&worker, libc::SYS_fcntl, [3, F_SETSIG.into()]),
        REFUSE
    );
    assert_eq!(
        answer(&worker, libc::SYS_fcntl, [3, libc::F_GETFD as u64]),
        ALLOW
    );
}

#[test]
fn nesting_permits_namespaces_and_nothing_else() {
    let nested = nested();
    let flags = (libc::CLONE_NEWUSER | libc::CLONE_NEWPID) as u64;
    assert_eq!(answer(&nested, libc::SYS_unshare, [flags, 0]), ALLOW);
    assert_eq!(answer(&nested, libc::SYS_mount, [0, 0]), ALLOW);
    assert_eq!(answer(&nested, libc::SYS_ptrace, [0, 0]), REFUSE);
    assert_eq!(answer(&nested, libc::SYS_bpf, [0, 0]), REFUSE);
}

#[test]
fn sockets_are_local_or_none() {
    let socket = |openings: &[sock_filter], family: i32| {
        answer(openings, libc::SYS_socket, [family as u64, 1])
    };
    let plain = build(false, false, false, ExecutableMemory::FilesOnly);
    let worker = worker();
    for family in [
        libc::AF_INET,
        libc::AF_INET6,
        libc::AF_NETLINK,
        libc::AF_VSOCK,
        libc::AF_PACKET,
    ] {
        assert_eq!(socket(&worker, family), REFUSE);
    }
    assert_eq!(socket(&worker, libc::AF_UNIX), ALLOW);
    assert_eq!(socket(&plain, libc::AF_UNIX), REFUSE);
    let pair = |kind: i32| {
        let arguments = [libc::AF_UNIX as u64, (kind | libc::SOCK_CLOEXEC) as u64];
        answer(&plain, libc::SYS_socketpair, arguments)
    };
    assert_eq!(pair(libc::SOCK_STREAM), ALLOW);
    assert_eq!(pair(libc::SOCK_DGRAM), REFUSE);
}

#[test]
fn the_raw_form_is_eight_bytes_an_instruction() {
    let bytes = worker_filter(ExecutableMemory::FilesOnly).unwrap();
    assert_eq!(bytes.len(), 8 * worker().len());
}

#[test]
fn a_foreign_architecture_is_killed_and_x32_does_not_exist() {
    for number in [0, 59, libc::SYS_clone3 as u32, X32_SYSCALL_BIT, u32::MAX] {
        assert_eq!(decide(&worker(), 0x4000_0003, number, [0; 6]), KILL);
    }
    if cfg!(target_arch = "x86_64") {
        for number in [X32_SYSCALL_BIT, X32_SYSCALL_BIT + 59, u32::MAX] {
            assert_eq!(decide(&nested(), AUDIT_ARCH, number, [0; 6]), NO_SUCH_CALL);
        }
    }
}

/// The answers to every system call with flags and numbers one by one and at random, as a hash. They are those of the
/// hand-assembled filter that this one replaced: who changes a rule changes a hash here.
#[cfg(target_arch = "x86_64")]
#[test]
fn every_decision_is_pinned() {
    use ExecutableMemory::{FilesOnly, Generated};
    let decisions = |program: &[sock_filter]| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut note =
            |answer: u32| hash = (hash ^ u64::from(answer)).wrapping_mul(0x100_0000_01b3);
        for number in 0..512 {
            for argument in 0..4 {
                for value in (0..64).chain((6..64).map(|bit| 1_u64 << bit)) {
                    let mut arguments = [0; 6];
                    arguments[argument] = value;
                    note(decide(program, AUDIT_ARCH, number, arguments));
                }
            }
            for _ in 0..200 {
                let arguments = [(); 6].map(|()| match random() % 4 {
                    0 => random(),
                    1 => random() & random() & random(),
                    2 => random() % 64,
                    _ => (1 << (random() % 40)) | (random() % 8),
                });
                note(decide(program, AUDIT_ARCH, number, arguments));
            }
        }
        hash
    };
    for (name, program, pinned) in [
        (
            "command",
            build(false, true, true, Generated),
            0x4290_4c94_1787_b966,
        ),
        (
            "plain command",
            build(false, false, true, Generated),
            0x679e_3f0f_06c5_5ad7,
        ),
        (
            "nested command",
            build(true, true, true, Generated),
            0xb85a_223b_e664_39ea,
        ),
        (
            "worker",
            build(false, true, false, FilesOnly),
            0x8b32_d0cf_c814_4aa4,
        ),
        (
            "worker with CUDA",
            build(false, true, false, Generated),
            0x97f9_ff62_3fff_19ff,
        ),
    ] {
        assert_eq!(decisions(&program), pinned, "{name}");
    }
}
