"""A real OTLP/HTTP collector on loopback that keeps what it is sent, and can misbehave."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def value(of: AnyValue) -> Any:
    return getattr(of, str(of.WhichOneof("value")))


class Collector:
    """`status`: what it answers; `hang`: it answers nothing until the test ends."""

    def __init__(self) -> None:
        self.status = 200
        self.hang = False
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.asked = threading.Event()
        self.ended = threading.Event()
        self.url = ""

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for message in self._messages()
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, Any]:
        [resource] = {str(r.resource): r for m in self._messages() for r in m.resource_spans}.values()
        return {each.key: value(each.value) for each in resource.resource.attributes}

    def span(self, name: str) -> Span:
        [found] = [span for span in self.spans if span.name == name]
        return found

    def attributes(self, name: str) -> dict[str, Any]:
        return {each.key: value(each.value) for each in self.span(name).attributes}

    def _messages(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]


@contextlib.contextmanager
def running_collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.asked.set()
            if collector.hang:
                collector.ended.wait(30)
                self.close_connection = True
                return
            if collector.status == 200:
                collector.bodies.append(body)
                collector.paths.append(self.path)
                collector.headers.append({name.lower(): each for name, each in self.headers.items()})
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield collector
    finally:
        collector.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
