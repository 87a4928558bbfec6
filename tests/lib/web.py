"""HTTP for tests: a proxy that injects faults, and a server that takes PUTs."""
import contextlib
import http.client
import http.server
import socketserver
import threading


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass


@contextlib.contextmanager
def _serve(handler, tls=None):
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Request:
    def __init__(self, method, target, headers, body):
        self.method, self.target, self.headers, self.body = method, target, headers, body
        self.path, _, self.query = target.partition("?")


class Proxy:
    """Passes requests on, all but what `fault(request)` decides about.  It returns

        None                            pass it on
        "reset"                         close the connection without an answer
        "lost"                          pass it on, then close without giving the answer
        (status, headers, body)         answer by itself
        a function of (status, headers, body) to another such triple: change the answer
        a threading.Event                pass it on when that is set
    """

    def __init__(self, port, to_port):
        self.port, self.to_port = port, to_port
        self.fault = lambda request: None
        self.seen = []
        self.lock = threading.Lock()


@contextlib.contextmanager
def proxy(to_port):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def forward(self, request):
            upstream = http.client.HTTPConnection("127.0.0.1", it.to_port, timeout=120)
            try:
                upstream.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
                for name, value in request.headers.items():
                    upstream.putheader(name, value)
                upstream.endheaders(request.body)
                answer = upstream.getresponse()
                return answer.status, list(answer.headers.items()), answer.read()
            finally:
                upstream.close()

        def answer(self, status, headers, body):
            self.send_response_only(status)
            names = {name.lower() for name, _ in headers}
            for name, value in headers:
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            if "date" not in names:
                self.send_header("Date", self.date_time_string())
            length = dict((n.lower(), v) for n, v in headers).get("content-length", "0") if self.command == "HEAD" else len(body)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def serve(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, self.path, self.headers, body)
            with it.lock:
                it.seen.append(request)
                fault = it.fault(request)
            if fault == "reset":
                self.close_connection = True
                return
            if isinstance(fault, threading.Event):
                fault.wait(300)
            triple = fault if isinstance(fault, tuple) else self.forward(request)
            if fault == "lost":
                self.close_connection = True
                return
            if callable(fault):
                triple = fault(*triple)
            self.answer(*triple)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve

    with _serve(Handler) as server:
        it = Proxy(server.server_address[1], to_port)
        yield it


class Store:
    """What PUTs have brought: `objects` holds the whole ones, `broken` counts bodies that did not end."""

    def __init__(self, port):
        self.port = port
        self.objects, self.headers = {}, {}
        self.requests, self.broken = 0, 0
        self.answers = []  # (status, headers) for the next requests, before their body is read
        self.slow = 0
        self.take = None  # a function that is given the pieces of bodies, which are kept nowhere then


@contextlib.contextmanager
def store(tls=None):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def handle_expect_100(self):
            return True  # do_PUT says it, when it wants the body

        def chunks(self):
            while True:
                line = self.rfile.readline(100)
                size = int(line.strip().split(b";")[0], 16)  # '' (closed in the middle) is no number
                data = self.rfile.read(size)
                if len(data) != size or self.rfile.read(2) != b"\r\n":
                    raise ValueError("cut")
                if size == 0:
                    return
                yield data

        def read_body(self):
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                if it.take is None:
                    return b"".join(self.chunks())
                for piece in self.chunks():
                    it.take(piece)
                return b""
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            if len(body) != length:
                raise ValueError("cut")
            return body

        def do_PUT(self):
            it.requests += 1
            if it.answers:
                status, headers = it.answers.pop(0)
                if "expect" not in {name.lower() for name in self.headers}:
                    self.read_body()
                else:
                    self.close_connection = True
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.send_response_only(100)
                self.end_headers()
            try:
                body = self.read_body()
            except (ValueError, OSError):
                it.broken += 1
                self.close_connection = True
                return
            it.objects[self.path], it.headers[self.path] = body, self.headers
            self.send_response_only(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self):
            body = it.objects.get(self.path)
            if body is None:
                self.send_response_only(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with _serve(Handler, tls) as server:
        it = Store(server.server_address[1])
        yield it


@contextlib.contextmanager
def canned(*answers):
    """A server that reads a request with its body, answers with the next of these (bytes, or pieces of them without end), and hangs up.  None: it
    never answers.  Yields its port and the lines of the requests."""
    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            line = self.rfile.readline().decode().strip()
            headers = http.client.parse_headers(self.rfile)
            if not line:
                return
            lines.append(line)
            if "Expect" in headers:
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if headers.get("Transfer-Encoding"):
                while (size := int(self.rfile.readline(), 16)) > 0:
                    self.rfile.read(size + 2)
            self.rfile.read(int(headers.get("Content-Length", 0)))
            answer = answers[min(len(lines), len(answers)) - 1]
            if answer is None:
                over.wait(300)
                return
            with contextlib.suppress(OSError):
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    self.wfile.write(piece)

    lines, over = [], threading.Event()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], lines
        over.set()
        server.shutdown()
