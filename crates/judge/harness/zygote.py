"""Forks one confined worker per candidate from a process that already imported PyTorch.

It runs inside the sandbox and holds no secret. Before the first fork it makes no tensor and no CUDA call: a fork would
inherit their threads as ghosts.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

sys.modules["numpy"] = None  # a worker has no numeric library but its own kernels

import quick_torch  # noqa: E402, F401, first: it imports PyTorch
import torch  # noqa: E402

# Runs graphs by kernels that no dispatcher sees; nothing that a submission may do needs it.
if hasattr(torch._C, "_jit_to_static_module"):
    del torch._C._jit_to_static_module

import worker  # noqa: E402
from channel import Channel  # noqa: E402

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
SCRATCH = "/dev/shm"
FILE_BYTES = 64 << 20
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_namespaces() -> None:
    """New user, pid, mount, ipc and network namespaces for what this process forks next."""
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS
    _check(_libc.unshare(flags), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def mount_private(scratch_bytes: int) -> None:
    """A fresh /proc (else CUDA fails, and the zygote would be visible), an empty and bounded scratch folder, and the
    zygote's own /tmp read-only: what one candidate writes, no later one sees. (It is not hidden, because a Python
    environment may lie below it.)"""
    _check(_libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount private")
    _check(_libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None), "mount proc")
    read_only = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV
    _check(_libc.mount(b"none", b"/tmp", None, read_only, None), "remount /tmp")
    options = f"size={scratch_bytes},mode=0777".encode()
    _check(_libc.mount(b"tmpfs", SCRATCH.encode(), b"tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options), "mount tmpfs")


class _SockFprog(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def lock_down(seccomp: bytes) -> None:
    """Gives up every capability and installs the system-call filter; neither can be undone."""
    for capability in range(64):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    if seccomp:
        program = _SockFprog(len(seccomp) // 8, seccomp)
        _check(_libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0), "seccomp")


def become_worker(channel_fd: int, printed_fd: int, support: worker.Support, config: dict) -> None:
    if config["nested"]:
        mount_private(config["scratch_bytes"])
    os.setsid()
    os.dup2(printed_fd, 1)  # a file of its own: what one candidate prints, or does to its streams, is nobody else's
    os.dup2(printed_fd, 2)
    keep = os.dup2(channel_fd, 3)
    os.closerange(keep + 1, 65536)
    os.chdir(SCRATCH)
    os.environ["HOME"] = os.environ["TMPDIR"] = SCRATCH
    lock_down(bytes(config["seccomp"]))
    channel = Channel(3)
    channel.send({"ok": {"protocol": worker.PROTOCOL}})  # before this frame a death is ours, after it the candidate's
    worker.serve(channel, support)


def spawn(control: Channel, request: dict, fds: list[int], support: worker.Support, config: dict) -> None:
    """Forks; the middle process hands the worker's pidfd to the supervisor and stays to reap it."""
    channel_fd, printed_fd = fds
    middle = os.fork()
    if middle:
        os.close(channel_fd)
        os.close(printed_fd)
        return
    try:
        if config["nested"]:
            enter_namespaces()
        pid = os.fork()
        if pid == 0:
            control.close()
            try:
                become_worker(channel_fd, printed_fd, support, config)
            finally:
                os._exit(1)
        os.close(channel_fd)
        os.close(printed_fd)
        pidfd = os.pidfd_open(pid)
        control.send({"ok": {}, "id": request["id"]}, [pidfd])
        control.close()
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            sys.stderr.write(f"the worker was ended by {signal.Signals(os.WTERMSIG(status)).name}\n")
    except BaseException as error:  # noqa: BLE001
        control.send({"error": {"kind": "harness", "code": "fork", "message": repr(error)}, "id": request["id"]})
    finally:
        os._exit(0)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def main() -> None:
    control = Channel(3)
    support = worker.load_support(sys.argv[1], sys.argv[2], share=True)
    support.native.warpsmith_guard(1 if sys.argv[3] == "cuda" else 0)
    config, _ = control.recv()
    control.send({"ok": {"protocol": worker.PROTOCOL, "torch": torch.__version__}})
    while True:
        try:
            request, fds = control.recv()
        except EOFError:
            return
        reap()
        spawn(control, request, fds, support, config)


if __name__ == "__main__":
    main()
