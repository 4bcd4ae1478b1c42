"""A provider that wants a key: Responses over plain HTTP, on every address of the tree. Plain Python.

    python3 provider.py PORT KEY ANSWER

A request whose text holds "slowly" is answered two seconds after it began. What has been asked, and with which
authorization it was refused, is appended to /root/asked, a line each.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, KEY, ANSWER = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def event(kind, **members):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


class Answering(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = self.rfile.read(int(self.headers["content-length"])).decode()
        is_right = self.headers.get("authorization") == f"Bearer {KEY}"
        with open("/root/asked", "a") as asked_file:
            asked_file.write(("asked " if is_right else "wrong key ") + asked + "\n")
        self.send_response(200 if is_right else 401)
        self.send_header("content-type", "text/event-stream" if is_right else "application/json")
        self.send_header("connection", "close")
        self.end_headers()
        if not is_right:
            self.wfile.write(b'{"error": {"message": "wrong key", "type": "invalid_request_error"}}')
            return
        self.wfile.write(event("response.output_text.delta", delta=ANSWER, output_index=0))
        self.wfile.flush()
        if "slowly" in asked:
            time.sleep(2)
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]}
        self.wfile.write(event("response.output_item.done", item=message, output_index=0))
        usage = {"input_tokens": 11, "output_tokens": 3, "total_tokens": 14}
        response = {"id": "resp_1", "object": "response", "status": "completed", "usage": usage}
        self.wfile.write(event("response.completed", response=response))

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128


Server(("0.0.0.0", PORT), Answering).serve_forever()
