//! The system-call filter.
//!
//! It answers system calls that a compiler or a worker with PyTorch never needs with `EPERM`, so that a refusal looks
//! like a missing privilege. It is a second line of defence: namespaces, landlock and the uid hold without it. The
//! exception is a network other than IP (vsock reaches a hypervisor from every network namespace), which this filter
//! alone cuts off.
//!
//! The rules are compiled by `seccompiler` before the fork. Two answers of another kind come before its program: it
//! has one answer for all rules, and it does not know the x32 system calls.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

use crate::error::SandboxError;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;
#[cfg(target_arch = "x86_64")]
const TARGET_ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const TARGET_ARCH: TargetArch = TargetArch::aarch64;

/// System calls of the x32 ABI have numbers from here on.
const X32_SYSCALL_BIT: u32 = 0x4000_0000;

// Offsets into `struct seccomp_data`.
const SYSCALL_NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const NO_SUCH_CALL: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// A command of `fcntl`: choose the signal that a descriptor sends when it is ready.
const F_SETSIG: u32 = 10;

/// A flag of `shmat`: the attached memory may be executed.
const SHM_EXEC: u32 = 0o100_000;

/// A flag of `unshare` only: in `clone` the low eight bits are the exit signal.
const CLONE_NEWTIME: u32 = 0x80;

const NAMESPACE_FLAGS: [u32; 7] = [
    libc::CLONE_NEWNS as u32,
    libc::CLONE_NEWCGROUP as u32,
    libc::CLONE_NEWUTS as u32,
    libc::CLONE_NEWIPC as u32,
    libc::CLONE_NEWUSER as u32,
    libc::CLONE_NEWPID as u32,
    libc::CLONE_NEWNET as u32,
];

/// Refused to every command and every worker.
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
const ALWAYS_ON_THIS_ARCHITECTURE: &[c_long] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
];
#[cfg(target_arch = "aarch64")]
const ALWAYS_ON_THIS_ARCHITECTURE: &[c_long] = &[libc::SYS_nfsservctl, libc::SYS_lookup_dcookie];

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

/// What a filter permits beyond the least.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyscallPermissions {
    /// New namespaces, and mounts in them.
    pub(crate) namespaces: bool,
    /// Sockets that can be connected to a path. Without a mount namespace such a path leads to a daemon outside.
    pub(crate) unix_sockets: bool,
    /// New processes and programs. A worker needs none: a compiler or another interpreter would escape the checks of
    /// what the worker loaded, and a second process would go on while the first one is stopped.
    pub(crate) processes: bool,
    pub(crate) executable_memory: ExecutableMemory,
}

/// Which memory a process may execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutableMemory {
    /// Mapped from files: what a process runs is what lies in files.
    FilesOnly,
    /// Also written at run time: CUDA's driver generates code.
    Generated,
}

/// A filter under construction: every system call with a rule that matches is refused with `EPERM`.
#[derive(Default)]
struct Refusals {
    rules: BTreeMap<i64, Vec<SeccompRule>>,
}

impl Refusals {
    /// Refuses `call` whatever its arguments are.
    fn add(&mut self, call: c_long) {
        self.rules.insert(call, Vec::new());
    }

    /// Refuses `call` where all `conditions` hold. Several such rules of one call are alternatives.
    fn add_if(
        &mut self,
        call: c_long,
        conditions: impl IntoIterator<Item = Result<SeccompCondition, BackendError>>,
    ) -> Result<(), BackendError> {
        let conditions = conditions.into_iter().collect::<Result<_, _>>()?;
        self.rules
            .entry(call)
            .or_default()
            .push(SeccompRule::new(conditions)?);
        Ok(())
    }
}

/// The flags and numbers that are compared here all lie in the low 32 bits of an argument.
fn argument(
    index: u8,
    operation: SeccompCmpOp,
    value: u32,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, operation, value.into())
}

fn has_bits(index: u8, bits: u32) -> Result<SeccompCondition, BackendError> {
    argument(index, SeccompCmpOp::MaskedEq(bits.into()), bits)
}

fn lacks_bits(index: u8, bits: u32) -> Result<SeccompCondition, BackendError> {
    argument(index, SeccompCmpOp::MaskedEq(bits.into()), 0)
}

pub(crate) fn filter(permissions: SyscallPermissions) -> Result<BpfProgram, SandboxError> {
    compile(permissions).map_err(SandboxError::Filter)
}

fn compile(permissions: SyscallPermissions) -> Result<BpfProgram, BackendError> {
    let mut refusals = Refusals::default();
    for call in ALWAYS.iter().chain(ALWAYS_ON_THIS_ARCHITECTURE) {
        refusals.add(*call);
    }
    if !permissions.processes {
        refuse_processes(&mut refusals)?;
    }
    if permissions.executable_memory == ExecutableMemory::FilesOnly {
        refuse_generated_code(&mut refusals)?;
    }
    if !permissions.namespaces {
        refuse_namespaces(&mut refusals, permissions.processes)?;
    }
    refuse_sockets(&mut refusals, permissions.unix_sockets)?;
    let filter = SeccompFilter::new(
        refusals.rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        TARGET_ARCH,
    )?;
    let mut program = prologue(permissions);
    program.extend(BpfProgram::try_from(filter)?);
    Ok(program)
}

/// What comes before the rules; it falls through to them.
fn prologue(permissions: SyscallPermissions) -> BpfProgram {
    let step = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let mut program = vec![
        step(LOAD, ARCHITECTURE, 0, 0),
        step(IF_EQUAL, AUDIT_ARCH, 1, 0),
        step(RETURN, KILL, 0, 0),
        step(LOAD, SYSCALL_NUMBER, 0, 0),
    ];
    if cfg!(target_arch = "x86_64") {
        // The numbers of the x32 ABI are in no rule.
        program.extend([
            step(IF_AT_LEAST, X32_SYSCALL_BIT, 0, 1),
            step(RETURN, NO_SUCH_CALL, 0, 0),
        ]);
    }
    if !permissions.namespaces {
        // Its flags lie in memory that a filter cannot read. libc then falls back to `clone`.
        program.extend([
            step(IF_EQUAL, libc::SYS_clone3 as u32, 0, 1),
            step(RETURN, NO_SUCH_CALL, 0, 0),
        ]);
    }
    program
}

/// No new process or program, and no way for a stopped process to have itself continued.
fn refuse_processes(refusals: &mut Refusals) -> Result<(), BackendError> {
    refusals.add(libc::SYS_execve);
    refusals.add(libc::SYS_execveat);
    #[cfg(target_arch = "x86_64")]
    for call in [libc::SYS_fork, libc::SYS_vfork] {
        refusals.add(call);
    }
    // A stopped process continues at SIGCONT, and these calls could have it sent at a chosen time.
    refusals.add(libc::SYS_timer_create);
    refusals.add(libc::SYS_mq_notify);
    refusals.add_if(libc::SYS_fcntl, [argument(1, SeccompCmpOp::Eq, F_SETSIG)])
}

/// Memory becomes executable only as a mapped file, and no file without a name can be made.
fn refuse_generated_code(refusals: &mut Refusals) -> Result<(), BackendError> {
    let (execute, write) = (libc::PROT_EXEC as u32, libc::PROT_WRITE as u32);
    refusals.add(libc::SYS_memfd_create);
    // It can make everything readable executable.
    refusals.add(libc::SYS_personality);
    refusals.add_if(libc::SYS_shmat, [has_bits(2, SHM_EXEC)])?;
    for call in [libc::SYS_mprotect, libc::SYS_pkey_mprotect] {
        refusals.add_if(call, [has_bits(2, execute)])?;
    }
    refusals.add_if(libc::SYS_mmap, [has_bits(2, execute | write)])?;
    refusals.add_if(
        libc::SYS_mmap,
        [
            has_bits(2, execute),
            has_bits(3, libc::MAP_ANONYMOUS as u32),
        ],
    )
}

fn refuse_namespaces(refusals: &mut Refusals, processes: bool) -> Result<(), BackendError> {
    for call in MOUNTING {
        refusals.add(*call);
    }
    for call in [libc::SYS_clone, libc::SYS_unshare] {
        for flag in NAMESPACE_FLAGS {
            refusals.add_if(call, [has_bits(0, flag)])?;
        }
    }
    refusals.add_if(libc::SYS_unshare, [has_bits(0, CLONE_NEWTIME)])?;
    if !processes {
        // Threads only.
        refusals.add_if(libc::SYS_clone, [lacks_bits(0, libc::CLONE_THREAD as u32)])?;
    }
    Ok(())
}

/// Local sockets at most.
fn refuse_sockets(refusals: &mut Refusals, unix_sockets: bool) -> Result<(), BackendError> {
    let not_unix = || argument(0, SeccompCmpOp::Ne, libc::AF_UNIX as u32);
    refusals.add_if(libc::SYS_socketpair, [not_unix()])?;
    if unix_sockets {
        return refusals.add_if(libc::SYS_socket, [not_unix()]);
    }
    refusals.add(libc::SYS_socket);
    // One end of a datagram pair can still be connected to a path.
    let kind = SeccompCmpOp::MaskedEq(0xf);
    refusals.add_if(
        libc::SYS_socketpair,
        [argument(1, kind, libc::SOCK_DGRAM as u32)],
    )
}

/// The filter that a worker installs on itself once it has made its own namespaces: no further namespaces and no other
/// process. The bytes are an array of `struct sock_filter`, as the kernel takes it.
pub fn worker_filter(executable_memory: ExecutableMemory) -> Result<Vec<u8>, SandboxError> {
    let permissions = SyscallPermissions {
        namespaces: false,
        unix_sockets: true,
        processes: false,
        executable_memory,
    };
    let mut bytes = Vec::new();
    for instruction in filter(permissions)? {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
