//! What a command can access.

use std::io::Write;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::script::{attempts, policy, run_script, says, script};
use warpsmith_sandbox::{ExecutableMemory, Exit, effective, run, worker_filter};

#[test]
fn this_machine_contains() {
    let found = effective();
    assert!(found.contained(), "missing: {:?}", found.missing());
    assert!(found.seccomp.is_held());
    let names: Vec<&str> = found.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 13);
}

#[test]
fn only_what_is_named_can_be_read() {
    let secret = tempfile::tempdir().unwrap();
    let shown = tempfile::tempdir().unwrap();
    for folder in [&secret, &shown] {
        set_mode(folder.path(), 0o755);
        std::fs::write(folder.path().join("file"), "content").unwrap();
    }
    let mut policy = policy();
    policy.read.push(shown.path().to_owned());
    let source = attempts(
        "shown, secret = sys.argv[1:]",
        &[
            "open(shown + '/file').read()",
            "open(secret + '/file').read() == ''",
            "open('/etc/passwd').read() == ''",
            "open(shown + '/file', 'w')",
            "open(shown + '/new', 'w')",
            "os.unlink(shown + '/file')",
            "os.listdir('/home') == []",
        ],
    );
    let said = says(&source, &[shown.path(), secret.path()], &policy);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "'content'");
    for (line, what) in lines[1..].iter().zip(source.lines().skip(6)) {
        let refused = ["ENOENT", "EACCES", "EROFS", "EPERM"].contains(line);
        assert!(refused, "{line} for {what}");
    }
    assert_eq!(lines.len(), 7);
}

#[test]
fn only_what_is_named_can_be_written() {
    let open = tempfile::tempdir().unwrap();
    let mut policy = policy();
    policy.write.push(open.path().to_owned());
    let source = attempts(
        "folder = sys.argv[1]",
        &[
            "open(folder + '/made', 'w').write('x')",
            "open('/tmp/made', 'w').write('x')",
            "open('/dev/null', 'w').write('x')",
            "open('/made', 'w')",
            "open('/dev/made', 'w')",
            "open('/usr/made', 'w')",
            "os.mkdir('/usr/made')",
        ],
    );
    let said = says(&source, &[open.path()], &policy);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..3], ["1", "1", "1"]);
    for line in &lines[3..] {
        assert!(["EACCES", "EROFS", "EPERM"].contains(line), "{line}");
    }
    assert_eq!(
        std::fs::read_to_string(open.path().join("made")).unwrap(),
        "x"
    );
    assert!(!Path::new("/tmp/made").exists());
}

#[test]
fn a_link_is_shown_as_a_link() {
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o755);
    std::fs::create_dir(folder.path().join("real")).unwrap();
    std::fs::write(folder.path().join("real/file"), "through").unwrap();
    std::os::unix::fs::symlink("real", folder.path().join("link")).unwrap();
    let mut policy = policy();
    policy.read.push(folder.path().join("link"));
    let source = attempts(
        "folder = sys.argv[1]",
        &[
            "os.readlink(folder + '/link')",
            "open(folder + '/link/file').read()",
        ],
    );
    assert_eq!(
        says(&source, &[folder.path()], &policy),
        "'real'\n'through'\n"
    );
}

#[test]
fn the_standard_streams_have_their_usual_names() {
    let source = attempts(
        "",
        &[
            "[os.readlink('/dev/' + name) for name in ('fd', 'stdin', 'stdout', 'stderr')]",
            "os.path.samefile('/dev/stdin', '/dev/null')",
        ],
    );
    assert_eq!(
        says(&source, &[], &policy()),
        "['/proc/self/fd', '/proc/self/fd/0', '/proc/self/fd/1', '/proc/self/fd/2']\nTrue\n"
    );
}

#[test]
fn there_is_no_network() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let source = attempts(
        &format!("address = ('127.0.0.1', {port})"),
        &[
            "socket.create_connection(address, 2)",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', address)",
            "socket.socket(socket.AF_INET6)",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
            "socket.socket(socket.AF_VSOCK)",
        ],
    );
    assert_eq!(says(&source, &[], &policy()), "EPERM\n".repeat(5));
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

#[test]
fn other_processes_are_out_of_reach() {
    let own = std::process::id();
    let source = attempts(
        &format!("own = {own}\nlibc = ctypes.CDLL(None, use_errno=True)\n{CALL}"),
        &[
            "os.kill(own, 9)",
            "os.kill(os.getppid(), 9) if os.getppid() > 1 else os.kill(own, 9)",
            "call(libc.ptrace, 16, own, 0, 0)",
            "call(libc.ptrace, 0, 0, 0, 0)",
            "open(f'/proc/{own}/environ').read() == ''",
            "open('/proc/1/environ').read() == ''",
            "open('/proc/1/mem', 'rb')",
        ],
    );
    let said = says(&source, &[], &policy());
    for line in said.lines() {
        assert!(
            ["ESRCH", "EPERM", "EACCES", "ENOENT"].contains(&line),
            "{said}"
        );
    }
    assert_eq!(said.lines().count(), 7);
}

const CALL: &str = "
def call(function, *arguments):
    result = function(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), '')
    return result
";

#[test]
fn nothing_but_the_given_is_inherited() {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let spare = std::fs::File::open("/dev/null").unwrap();
    let source = "
import os
table = sorted(int(name) for name in os.listdir('/proc/self/fd'))
table = [fd for fd in table if os.path.exists(f'/proc/self/fd/{fd}') or fd < 5]
print(table, dict(os.environb))
print(os.read(3, 5), os.readlink('/proc/self/fd/0'))
";
    ours.write_all(b"hello").unwrap();
    let mut command = script(source, &[]);
    command.env = vec![
        ("ONLY".into(), "this".into()),
        ("LC_ALL".into(), "C".into()),
    ];
    command.fds = vec![OwnedFd::from(theirs), OwnedFd::from(spare)];
    let output = run(command, &policy()).unwrap();
    // Python's UTF-8 coercion is off under LC_ALL, so the table is exact.
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "[0, 1, 2, 3, 4] {b'ONLY': b'this', b'LC_ALL': b'C'}\nb'hello' /dev/null\n"
    );
    assert_eq!(output.exit, Exit::Code(0));
}

#[test]
fn privileges_are_gone() {
    let said = says("print(open('/proc/self/status').read())", &[], &policy());
    let field = |name: &str| {
        said.lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
            .trim()
            .to_owned()
    };
    for name in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(name), "0000000000000000", "{name}");
    }
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("Seccomp:"), "2");
    assert!(!field("Uid:").starts_with("0\t"));
}

#[test]
fn namespaces_are_refused_unless_nested() {
    let source = attempts(
        &format!("libc = ctypes.CDLL(None, use_errno=True)\n{CALL}"),
        &[
            "call(libc.unshare, 0x10000000)",
            "call(libc.mount, b'none', b'/tmp', b'tmpfs', 0, None)",
            "call(libc.setns, 0, 0)",
        ],
    );
    assert_eq!(says(&source, &[], &policy()), "EPERM\n".repeat(3));
}

/// As a worker does it: its own namespaces, a fresh /proc, then the filter.
#[test]
fn a_nested_command_can_confine_its_own_workers() {
    let filter = worker_filter(ExecutableMemory::Generated).unwrap();
    let source = NESTED.replace("FILTER", &format!("{filter:?}"));
    let mut policy = policy();
    policy.nested = true;
    let output = run_script(&source, &[], &policy);
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(
        (output.exit, stdout.trim(), stderr.as_ref()),
        (Exit::Code(0), "1 ['1'] True True refused", "")
    );
}

const NESTED: &str = r"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def write(path, text):
    with open(path, 'w') as file:
        file.write(text)
uid, gid = os.getuid(), os.getgid()
check(libc.unshare(0x10000000 | 0x20000000 | 0x00020000 | 0x40000000 | 0x08000000))
write('/proc/self/setgroups', 'deny')
write('/proc/self/uid_map', f'{uid} {uid} 1')
write('/proc/self/gid_map', f'{gid} {gid} 1')
pid = os.fork()
if pid == 0:
    check(libc.mount(b'none', b'/', None, 16384 | (1 << 18), None))
    check(libc.mount(b'proc', b'/proc', b'proc', 2 | 4 | 8, None))
    check(libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 2 | 4, b'size=1m,mode=0777'))
    # What our mounts protect stays protected.
    sealed = libc.umount2(b'/usr', 2) != 0
    writable = libc.mount(None, b'/usr', None, 32 | 4096, None) != 0
    program = bytes(FILTER)
    class Program(ctypes.Structure):
        _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_char_p)]
    check(libc.prctl(22, 2, ctypes.byref(Program(len(program) // 8, program)), 0, 0))
    pids = [name for name in os.listdir('/proc') if name.isdigit()]
    refused = 'refused' if libc.unshare(0x10000000) != 0 else 'allowed'
    print(os.getpid(), pids, sealed, writable, refused, flush=True)
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

#[test]
fn a_missing_program_or_folder_is_named() {
    let mut command = script("", &[]);
    command.program = PathBuf::from("/nonexistent");
    let error = run(command, &policy()).unwrap_err();
    assert_eq!(error.to_string(), "failed to execute the program");
    let mut command = script("", &[]);
    command.cwd = PathBuf::from("/nonexistent");
    let error = run(command, &policy()).unwrap_err();
    assert_eq!(error.to_string(), "failed to enter the working directory");
    let mut command = script("", &[]);
    command.program = PathBuf::from("no-such-program");
    let error = run(command, &policy()).unwrap_err();
    assert_eq!(error.to_string(), "program `no-such-program` was not found");
}

#[test]
fn a_folder_that_the_other_uid_cannot_read_is_named() {
    let closed = tempfile::tempdir().unwrap();
    set_mode(closed.path(), 0o700);
    let mut policy = policy();
    policy.read.push(closed.path().to_owned());
    let result = run(script("", &[]), &policy);
    if effective().other_uid.is_held() {
        let wanted = format!("`{}` is not readable", closed.path().display());
        let error = result.unwrap_err();
        assert!(error.to_string().starts_with(&wanted), "{error}");
        assert!(error.hint().is_some());
    } else {
        assert_eq!(result.unwrap().exit, Exit::Code(0));
    }
}

fn set_mode(folder: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(mode);
    assert!(std::fs::set_permissions(folder, mode).is_ok());
}
