"""Steps that a process confined for a GPU tries, and what refuses each: for the tests of Landlock and seccomp."""

SCRIPT = r"""
import array, ctypes, errno, fcntl, json, os, resource, selectors, shutil, signal, socket, struct, subprocess, sys
import threading, time
from pathlib import Path

folder, outside, parent = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ.update(TRITON_CACHE_DIR=folder, TMPDIR=folder)
import triton.runtime.build
import triton.knobs
from gemm_course.isolation import landlock

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.ptrace.restype = ctypes.c_long
outcomes = {}
on_x86 = os.uname().machine == "x86_64"


def tried(step):
    try:
        outcomes[step.__name__] = step() or ""
    except BaseException as error:
        outcomes[step.__name__] = f"{type(error).__name__}: {error}"


def mapped(size, protection, flags):
    address = libc.mmap(None, ctypes.c_size_t(size), protection, flags, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")


def local(kind):
    return socket.socket(socket.AF_UNIX, kind)


def refused(call, *arguments):
    if call(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


segment, semaphores, messages = libc.shmget(0, 4096, 0o1600), libc.semget(0, 1, 0o1600), libc.msgget(0, 0o1600)
for each in (segment, semaphores, messages):
    assert each >= 0, "none to try it with"

life, end_of_life = os.pipe()
neighbour = os.fork()  # with no more rights than this process will have: those of root's would protect it
if neighbour == 0:
    landlock._renounce()
    os.close(end_of_life)
    os.read(life, 1)  # until the other end is closed with its process
    for remove, *which in ((libc.shmctl, segment, 0), (libc.semctl, semaphores, 0, 0), (libc.msgctl, messages, 0)):
        remove(*which, None)
    os._exit(0)

waiting = threading.Event()
before = threading.Thread(target=waiting.wait, daemon=True)
landlock._GPU_DEVICES += ("/dev/random",)  # a device that every machine has
landlock.confine([folder], folder, programs=True, gpu=True)
landlock.limit(512, 60, file_mb=64)
before.start()


@tried
def name_of_a_thread():
    for thread in (before.native_id, os.getpid()):
        Path(f"/proc/self/task/{thread}/comm").write_text("cuda-EvtHandlr")
        Path(f"/proc/{os.getpid()}/task/{thread}/comm").write_text("cuda-EvtHandlr")

@tried
def addresses_without_memory():
    mapped(512 << 30, 0, 0x4022)  # that nobody may touch yet, private, not reserved

@tried
def shared_memory():
    mapped(1 << 30, 3, 0x21)

@tried
def memory_file():
    os.ftruncate(os.memfd_create("cuda"), 32 << 20)

@tried
def thirty_two_threads():
    threads = [threading.Thread(target=time.sleep, args=(0.05,)) for _ in range(32)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

@tried
def place_of_a_thread():
    os.sched_setaffinity(before.native_id, os.sched_getaffinity(0))

@tried
def local_sockets():
    listener = local(socket.SOCK_SEQPACKET)
    listener.bind(f"\0cuda-uvmfd-{os.getpid()}")
    listener.listen()
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        here, there = socket.socketpair(type=kind)
        here.send(b"x")

@tried
def own_priority():
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))
    os.setpriority(os.PRIO_PROCESS, os.getpid(), os.getpriority(os.PRIO_PROCESS, 0))

@tried
def control_of_a_device():
    with open("/dev/random", "rb", buffering=0) as device:
        fcntl.ioctl(device, 0x80045200, array.array("i", [0]))  # RNDGETENTCNT

@tried
def what_drivers_read():
    for path in ("/proc/devices", "/proc/stat", "/proc/self/maps", "/proc/self/status", "/proc/meminfo"):
        Path(path).read_bytes()
    Path("/proc/sys/vm/overcommit_memory").read_bytes()
    os.listdir("/sys/devices/system/cpu")
    if os.path.exists("/proc/driver"):
        os.listdir("/proc/driver")

@tried
def own_files():
    first, copy = Path(folder, "parts", "first"), Path(folder, "parts", "copy")
    first.parent.mkdir()
    first.write_text("text" * 5000)
    shutil.copy2(first, copy)
    assert copy.read_text() == first.read_text()
    copy.rename(first)
    copy.symlink_to("first")
    os.truncate(first, 4)
    assert copy.read_text() == "text" and set(os.listdir(first.parent)) == {"first", "copy"}
    shutil.rmtree(first.parent)

@tried
def waiting_for_pipes():
    out, into = os.pipe()
    for kind in (selectors.SelectSelector, selectors.PollSelector, selectors.EpollSelector):
        with kind() as selector:
            selector.register(out, selectors.EVENT_READ)
            assert not selector.select(0)
            os.write(into, b"x")
            assert selector.select(5) and os.read(out, 1) == b"x"

@tried
def signals_to_itself():
    for send in (lambda: signal.setitimer(signal.ITIMER_REAL, 0.01), lambda: signal.raise_signal(signal.SIGALRM)):
        came = threading.Event()
        signal.signal(signal.SIGALRM, lambda *_: came.set())
        send()
        assert came.wait(5)

@tried
def list_of_libraries():
    subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True)

@tried
def assembler():
    subprocess.run([triton.knobs.nvidia.ptxas.path, "--version"], check=True, capture_output=True)

@tried
def c_compiler():
    if shutil.which("gcc") or shutil.which("clang") or "CC" in os.environ:
        source = (
            "#include <Python.h>\n#include <dlfcn.h>\n"
            "static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, \"small\", NULL, -1, NULL};\n"
            "PyMODINIT_FUNC PyInit_small(void) { return PyModule_Create(&module); }\n"
        )
        triton.runtime.build.compile_module_from_src(source, "small")

# ---- refused

@tried
def copy():
    if os.fork() == 0:
        os._exit(0)

@tried
def copy_in_a_namespace():
    new_user, vfork = 0x10000000, 0x4000
    made = libc.syscall(56 if on_x86 else 220, vfork | new_user | signal.SIGCHLD, 0, 0, 0, 0)
    if made == 0:
        os._exit(0)
    refused(lambda: made)

@tried
def signal_to_another():
    os.kill(parent, 0)

@tried
def signal_by_a_pipe():
    fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, neighbour)

@tried
def signal_by_a_socket():
    fcntl.ioctl(socket.socketpair()[0], 0x8901, struct.pack("i", neighbour))  # FIOSETOWN

@tried
def life_beyond_the_parents():
    refused(libc.prctl, 1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG

@tried
def own_session():
    now = os.getsid(0), os.getpgid(0)
    os.setsid()
    os.setpgid(0, 0)
    return "moved" * (now != (os.getsid(0), os.getpgid(0)))

@tried
def program_in_its_own_session():
    subprocess.run(["/bin/true"], start_new_session=True, check=True)

@tried
def limit_of_another():
    resource.prlimit(parent, resource.RLIMIT_NOFILE)

@tried
def tcp():
    socket.create_connection(("127.0.0.1", 1), timeout=1)

@tried
def udp():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))

@tried
def stream():
    local(socket.SOCK_STREAM)

@tried
def datagram():
    local(socket.SOCK_DGRAM)

@tried
def datagram_of_a_pair():
    socket.socketpair(type=socket.SOCK_DGRAM)

@tried
def kernels_network():
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)

@tried
def connection():
    local(socket.SOCK_SEQPACKET).connect(os.path.join(outside, "control"))

@tried
def message_to_a_name():
    local(socket.SOCK_SEQPACKET).sendto(b"x", os.path.join(outside, "control"))

@tried
def visitor():
    listener = local(socket.SOCK_SEQPACKET)
    listener.bind(f"\0course-test-{os.getpid()}")
    listener.listen()
    listener.setblocking(False)
    listener.accept()

@tried
def device():
    os.mknod(os.path.join(folder, "device"), 0o20600, os.makedev(1, 5))

@tried
def socket_with_a_path():
    local(socket.SOCK_SEQPACKET).bind(os.path.join(folder, "socket"))

@tried
def name_of_the_machine():
    socket.sethostname(socket.gethostname())

@tried
def better_priority():
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)

@tried
def calls_that_nobody_needs():
    # inotify_init1, fanotify_init, name_to_handle_at, open_by_handle_at, request_key, mq_unlink, kcmp, migrate_pages,
    # move_pages, seccomp, personality, process_madvise, pidfd_open, open_tree, fsopen, landlock_create_ruleset,
    # futex_waitv, and some that no kernel has yet.
    old = (294, 300, 303, 304, 249, 241, 312, 256, 279, 317, 135)
    if not on_x86:
        old = (26, 262, 264, 265, 218, 181, 272, 238, 239, 277, 92)
    found = []
    for number in (*old, 440, 434, 428, 430, 444, 449, 700, 9999):
        if libc.syscall(number, -1, -1, -1, -1, -1, -1) != -1 or ctypes.get_errno() != errno.ENOSYS:
            found.append(number)
    return f"known: {found}" * bool(found)

@tried
def mode_of_the_users_file():
    path = Path(outside, "secret")
    now = path.stat().st_mode, path.stat().st_mtime
    path.chmod(0o777)
    os.utime(path, (1, 1))
    return "changed" * (now != (path.stat().st_mode, path.stat().st_mtime))

@tried
def priority_of_another():
    os.setpriority(os.PRIO_PROCESS, neighbour, os.getpriority(os.PRIO_PROCESS, neighbour))

@tried
def priority_of_a_user():
    os.setpriority(os.PRIO_USER, 0, os.getpriority(os.PRIO_PROCESS, 0))

@tried
def disk_priority_of_another():
    refused(libc.syscall, 251 if on_x86 else 30, 1, neighbour, 2 << 13 | 4)

@tried
def place_of_another():
    now = os.sched_getaffinity(neighbour), os.sched_getscheduler(neighbour)
    os.sched_setaffinity(neighbour, {min(now[0])})
    os.sched_setscheduler(neighbour, os.SCHED_BATCH, os.sched_param(0))
    return "moved" * (now != (os.sched_getaffinity(neighbour), os.sched_getscheduler(neighbour)))

@tried
def lasting_memory():
    refused(libc.shmget, 0, 4096, 0o600)

@tried
def lasting_messages():
    refused(libc.msgget, 0, 0o600)

def refused_all(*calls):  # every one, and as a call that is not permitted
    for call, *arguments in calls:
        if call(*arguments) != -1 or ctypes.get_errno() != errno.EPERM:
            return f"{call.__name__} went through, or failed otherwise: {ctypes.get_errno()}"
    raise PermissionError("all")

@tried
def memory_that_lasts_of_another():
    address = ctypes.create_string_buffer(4096)
    return refused_all((libc.shmat, segment, None, 0), (libc.shmctl, segment, 2, address), (libc.shmdt, address))

@tried
def semaphores_of_another():
    operation = ctypes.create_string_buffer(struct.pack("<Hhh", 0, 1, 0))
    time_limit = ctypes.create_string_buffer(struct.pack("<qq", 1, 0))
    return refused_all(
        (libc.semop, semaphores, operation, 1), (libc.semtimedop, semaphores, operation, 1, time_limit),
        (libc.semctl, semaphores, 0, 12),
    )

@tried
def messages_of_another():
    message = ctypes.create_string_buffer(struct.pack("<q8s", 1, b"x"))
    return refused_all(
        (libc.msgsnd, messages, message, 8, 0), (libc.msgrcv, messages, message, 8, 0, 0o4000),
        (libc.msgctl, messages, 2, ctypes.create_string_buffer(4096)),
    )

@tried
def lasting_memory_file():
    path = f"/dev/shm/course-test.{os.getpid()}"
    os.open(path, os.O_CREAT | os.O_RDWR)
    os.unlink(path)

@tried
def trace_of_another():
    refused(libc.ptrace, 16, parent, None, None)  # attach

@tried
def memory_of_another():
    Path(f"/proc/{parent}/mem").open("rb")

@tried
def name_of_another():
    Path(f"/proc/{parent}/comm").write_text("mine")

@tried
def file_of_the_user():
    Path(outside, "secret").read_text()

@tried
def new_file_of_the_user():
    Path(outside, "new").write_text("x")

@tried
def passwords():
    Path("/etc/passwd").read_text()

@tried
def memory_beyond_the_limit():
    mapped(1 << 30, 3, 0x22)

@tried
def file_beyond_the_limit():
    with open(os.path.join(folder, "large"), "wb") as file:
        os.ftruncate(file.fileno(), 65 << 20)

@tried
def sockets_beyond_the_limit():
    kept = [socket.socketpair() for _ in range(600)]

print(json.dumps(outcomes))
"""

GRANTED = (
    "name_of_a_thread", "addresses_without_memory", "shared_memory", "memory_file", "thirty_two_threads",
    "place_of_a_thread", "own_priority", "local_sockets", "control_of_a_device", "what_drivers_read",
    "own_files", "waiting_for_pipes", "signals_to_itself", "list_of_libraries", "assembler", "c_compiler",
)  # fmt: skip

BY_LANDLOCK = (
    "memory_of_another", "name_of_another", "file_of_the_user", "new_file_of_the_user", "passwords",
    "lasting_memory_file", "device", "socket_with_a_path",
)  # fmt: skip

BY_RIGHTS = ("better_priority",)

BY_FILTER = (
    "copy", "copy_in_a_namespace", "signal_to_another", "limit_of_another", "udp", "tcp", "stream", "datagram",
    "datagram_of_a_pair", "kernels_network", "visitor", "priority_of_another", "priority_of_a_user",
    "disk_priority_of_another", "lasting_memory", "lasting_messages", "memory_that_lasts_of_another",
    "semaphores_of_another", "messages_of_another", "trace_of_another",
)  # fmt: skip

BY_FILTER_IN_OTHER_WORDS = {
    "connection": "FileNotFoundError", "message_to_a_name": "OSError", "place_of_another": "",
    "mode_of_the_users_file": "", "signal_by_a_pipe": "OSError", "signal_by_a_socket": "OSError",
    "life_beyond_the_parents": "OSError", "own_session": "", "program_in_its_own_session": "",
    "name_of_the_machine": "OSError", "calls_that_nobody_needs": "",
}  # fmt: skip

BY_LIMIT = {
    "memory_beyond_the_limit": "[Errno 12]",
    "file_beyond_the_limit": "[Errno 27]",
    "sockets_beyond_the_limit": "[Errno 24]",
}
