"""A provider on a loopback port, in threads of its own, that counts what it is asked and never says a thing twice.

Because no two answers are alike, an answer that came twice came from a record.
What it was asked is known by the user's words.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_GIVE_UP_SECONDS = 120


class CountedProvider:
    """Answers any request at once, unless its words are in `held`: then when `release` is called."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.held: set[str] = set()
        self.answer_characters = 40
        self._answers = 0
        self._released = threading.Event()
        self._lock = threading.Lock()
        self.server = _Server(("127.0.0.1", 0), _answering(self))
        self.port = self.server.server_port

    @property
    def connector(self) -> str:
        """The keys of a `[[connector]]` that asks this provider."""
        return f'kind = "openai_chat"\nbase_url = "http://127.0.0.1:{self.port}/v1"'

    @property
    def requests(self) -> int:
        return sum(self.asked.values())

    def characters_of(self, words: str) -> int:
        """How long the answer to this is."""
        return self.answer_characters

    def release(self) -> None:
        self._released.set()

    def hold(self) -> None:
        """From now on those in `held` wait again, until the next release."""
        self._released.clear()

    def answer(self, words: str) -> bytes:
        with self._lock:
            self.asked[words] += 1
            self._answers += 1
            text = f"answer {self._answers} ".ljust(self.characters_of(words), ".")
        if words in self.held:
            self._released.wait(_GIVE_UP_SECONDS)
        chunks = (
            {"id": "c1", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]},
            {
                "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2},
            },
        )
        return "".join(f"data: {chunk}\n\n" for chunk in (*map(json.dumps, chunks), "[DONE]")).encode()


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A daemon that dies or drops a call hangs up on us: that is what these tests are about."""


def _answering(provider: CountedProvider) -> type[http.server.BaseHTTPRequestHandler]:
    class Answering(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = provider.answer(asked["messages"][-1]["content"])
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Answering


@contextmanager
def counted_provider() -> Iterator[CountedProvider]:
    provider = CountedProvider()
    with serving(provider):
        yield provider


@contextmanager
def serving(provider: CountedProvider) -> Iterator[None]:
    thread = threading.Thread(target=provider.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        provider.release()
        provider.server.shutdown()
        thread.join()
        provider.server.server_close()
