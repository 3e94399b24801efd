//! The system-call filter, assembled by hand.
//!
//! It answers what a kernel build or a worker with torch never needs with `EPERM`, so that a refusal looks like a missing
//! privilege. It is a second line: namespaces, landlock and the uid hold without it, except that a network made of
//! anything but IP (vsock reaches a hypervisor from every network namespace) is cut here alone.

use libc::{c_long, sock_filter};

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

// Offsets into `struct seccomp_data`; arguments are 64 bits wide, and both machines are little-endian.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const UNKNOWN: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// Of fcntl: the signal that a descriptor sends when it is ready.
const F_SETSIG: u32 = 10;

/// Of shmat: to execute what is attached.
const SHM_EXEC: u32 = 0o100_000;

const NAMESPACE_FLAGS: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32
    | 0x80; // CLONE_NEWTIME, valid for unshare only

/// Refused to everyone.
const ALWAYS: &[c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
];

#[cfg(target_arch = "x86_64")]
const ALWAYS_HERE: &[c_long] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
];
#[cfg(target_arch = "aarch64")]
const ALWAYS_HERE: &[c_long] = &[libc::SYS_nfsservctl, libc::SYS_lookup_dcookie];

/// Refused unless namespaces may be nested.
const MOUNTING: &[c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
];

/// What the filter leaves open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Openings {
    /// Namespaces and mounts.
    pub(crate) nested: bool,
    /// Sockets that can be connected to a path. Without a mount namespace such a path leads to a daemon outside.
    pub(crate) unix_sockets: bool,
    /// Other processes and programs. A worker has no need of any: a compiler or another interpreter would escape the checks
    /// made of what it loaded, and a second process would go on where the first one is stopped.
    pub(crate) programs: bool,
    /// Code that was written to memory. Without it what a process runs is what lies in files.
    pub(crate) new_code: bool,
}

struct Program(Vec<sock_filter>);

impl Program {
    fn add(&mut self, code: u16, k: u32, jt: u8, jf: u8) {
        self.0.push(sock_filter { code, jt, jf, k });
    }

    fn load(&mut self, offset: u32) {
        self.add(LOAD, offset, 0, 0);
    }

    fn load_argument(&mut self, index: u32) {
        self.load(ARGUMENTS + 8 * index);
    }

    fn answer(&mut self, value: u32) {
        self.add(RETURN, value, 0, 0);
    }

    /// `value` for system call `number`, whose number is loaded.
    fn answer_for(&mut self, number: c_long, value: u32) {
        self.add(IF_EQUAL, number as u32, 0, 1);
        self.answer(value);
    }

    /// Runs `body` for system call `number`; the body must end in an answer on every path.
    fn for_call(&mut self, number: c_long, body: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.add(IF_EQUAL, number as u32, 0, 0);
        body(self);
        self.0[at].jf = (self.0.len() - at - 1) as u8;
    }

    /// Refuses when the loaded value has any of `bits`.
    fn refuse_bits(&mut self, bits: u32) {
        self.add(IF_ANY_BIT, bits, 0, 1);
        self.answer(REFUSE);
    }
}

pub(crate) fn filter(openings: Openings) -> Vec<sock_filter> {
    let mut program = Program(Vec::with_capacity(192));
    program.load(ARCHITECTURE);
    program.add(IF_EQUAL, NATIVE, 1, 0);
    program.answer(KILL);
    program.load(NUMBER);
    if cfg!(target_arch = "x86_64") {
        // The x32 numbers would slip past every comparison below.
        program.add(IF_AT_LEAST, 0x4000_0000, 0, 1);
        program.answer(UNKNOWN);
    }
    for number in ALWAYS.iter().chain(ALWAYS_HERE) {
        program.answer_for(*number, REFUSE);
    }
    if !openings.programs {
        program.answer_for(libc::SYS_execve, REFUSE);
        program.answer_for(libc::SYS_execveat, REFUSE);
        #[cfg(target_arch = "x86_64")]
        for number in [libc::SYS_fork, libc::SYS_vfork] {
            program.answer_for(number, REFUSE);
        }
        // A stopped process goes on at SIGCONT, and these could have it sent at a time of their own.
        program.answer_for(libc::SYS_timer_create, REFUSE);
        program.answer_for(libc::SYS_mq_notify, REFUSE);
        program.for_call(libc::SYS_fcntl, |body| {
            body.load_argument(1);
            body.add(IF_EQUAL, F_SETSIG, 0, 1);
            body.answer(REFUSE);
            body.answer(ALLOW);
        });
    }
    if !openings.new_code {
        refuse_new_code(&mut program);
    }
    if !openings.nested {
        for number in MOUNTING {
            program.answer_for(*number, REFUSE);
        }
        // Its flags lie in memory that a filter cannot see; libc then falls back to clone.
        program.answer_for(libc::SYS_clone3, UNKNOWN);
        for call in [libc::SYS_clone, libc::SYS_unshare] {
            program.for_call(call, |body| {
                body.load_argument(0);
                // For clone the low bits are the exit signal, and 0x80 is no flag of it.
                let bits = if call == libc::SYS_clone {
                    NAMESPACE_FLAGS & !0xff
                } else {
                    NAMESPACE_FLAGS
                };
                body.refuse_bits(bits);
                if call == libc::SYS_clone && !openings.programs {
                    body.add(IF_ANY_BIT, libc::CLONE_THREAD as u32, 1, 0);
                    body.answer(REFUSE);
                }
                body.answer(ALLOW);
            });
        }
    }
    let family = libc::AF_UNIX as u32;
    program.for_call(libc::SYS_socket, |body| {
        body.load_argument(0);
        if openings.unix_sockets {
            body.add(IF_EQUAL, family, 0, 1);
            body.answer(ALLOW);
        }
        body.answer(REFUSE);
    });
    program.for_call(libc::SYS_socketpair, |body| {
        body.load_argument(0);
        body.add(IF_EQUAL, family, 1, 0);
        body.answer(REFUSE);
        if !openings.unix_sockets {
            // One end of a datagram pair can still be pointed at a path.
            body.load_argument(1);
            body.add(AND, 0xf, 0, 0);
            body.add(IF_EQUAL, libc::SOCK_DGRAM as u32, 0, 1);
            body.answer(REFUSE);
        }
        body.answer(ALLOW);
    });
    program.answer(ALLOW);
    program.0
}

/// Memory becomes executable only as a file's, and no file can be made that has no name.
fn refuse_new_code(program: &mut Program) {
    let execute = libc::PROT_EXEC as u32;
    program.answer_for(libc::SYS_memfd_create, REFUSE);
    // It can have everything readable be executable.
    program.answer_for(libc::SYS_personality, REFUSE);
    program.for_call(libc::SYS_shmat, |body| {
        body.load_argument(2);
        body.refuse_bits(SHM_EXEC);
        body.answer(ALLOW);
    });
    for call in [libc::SYS_mprotect, libc::SYS_pkey_mprotect] {
        program.for_call(call, |body| {
            body.load_argument(2);
            body.refuse_bits(execute);
            body.answer(ALLOW);
        });
    }
    program.for_call(libc::SYS_mmap, |body| {
        body.load_argument(2);
        body.add(IF_ANY_BIT, execute, 1, 0);
        body.answer(ALLOW);
        body.refuse_bits(libc::PROT_WRITE as u32);
        body.load_argument(3);
        body.refuse_bits(libc::MAP_ANONYMOUS as u32);
        body.answer(ALLOW);
    });
}

/// The filter as the kernel takes it (an array of `struct sock_filter`), for a worker to install on itself once it has
/// made its own namespaces: nothing can be nested any further, and no other program started. `new_code` is for drivers,
/// which write code to memory.
pub fn worker_filter(new_code: bool) -> Vec<u8> {
    let openings = Openings {
        nested: false,
        unix_sockets: true,
        programs: false,
        new_code,
    };
    let mut bytes = Vec::new();
    for instruction in filter(openings) {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the few instructions used; the oracle is the kernel's documented meaning of each.
    fn answer<const N: usize>(program: &[sock_filter], number: c_long, arguments: [u64; N]) -> u32 {
        let word = |offset: u32| match offset {
            NUMBER => number as u32,
            ARCHITECTURE => NATIVE,
            at => {
                let index = (at - ARGUMENTS) / 8;
                arguments[index as usize] as u32
            }
        };
        let (mut at, mut value) = (0, 0);
        loop {
            let step = program[at];
            let test = match step.code {
                LOAD => {
                    value = word(step.k);
                    None
                }
                AND => {
                    value &= step.k;
                    None
                }
                IF_EQUAL => Some(value == step.k),
                IF_AT_LEAST => Some(value >= step.k),
                IF_ANY_BIT => Some(value & step.k != 0),
                RETURN => return step.k,
                other => panic!("unknown instruction {other}"),
            };
            at += 1 + match test {
                Some(true) => usize::from(step.jt),
                Some(false) => usize::from(step.jf),
                None => 0,
            };
        }
    }

    fn program(nested: bool, unix_sockets: bool) -> Vec<sock_filter> {
        filter(Openings {
            nested,
            unix_sockets,
            programs: nested,
            new_code: nested,
        })
    }

    #[test]
    fn a_worker_makes_threads_but_no_processes_and_no_namespaces() {
        let worker = program(false, true);
        let thread = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;
        assert_eq!(answer(&worker, libc::SYS_clone, [thread, 0]), ALLOW);
        assert_eq!(answer(&worker, libc::SYS_clone3, [0, 0]), UNKNOWN);
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
    fn a_worker_runs_what_lies_in_files() {
        let worker = program(false, true);
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
        let opened = program(true, true);
        assert_eq!(answer(&opened, libc::SYS_memfd_create, [0, 0]), ALLOW);
    }

    /// Whoever is stopped between calls must stay so until the judge says otherwise.
    #[test]
    fn a_worker_cannot_have_itself_continued() {
        let worker = program(false, true);
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
    fn nesting_opens_namespaces_and_nothing_else() {
        let nested = program(true, true);
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
        let (worker, plain) = (program(false, true), program(false, false));
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
        assert_eq!(worker_filter(false).len(), 8 * program(false, true).len());
    }
}
