/** A daemon whose every word is the test's: it welcomes, notes what it is sent, and hands the rest to a function. */
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  canonicalBytes, decodeFrame, framed, FrameSplitter,
  type TransportEventPayload, type TransportInvocation, type TransportOutcome,
} from "./sidecar.ts";

export type Frame = { schema_id: string } & Record<string, unknown>;
export type Said = (connection: Connection, frame: Frame) => void;

export const ids = (frame: Frame): { caller_runtime_id: string; request_id: string } => {
  const invocation = (frame["invocation"] ?? frame) as unknown as TransportInvocation;
  return { caller_runtime_id: invocation.caller_runtime_id, request_id: invocation.request.request_id };
};

/** One connection, seen from the daemon's side. */
export class Connection {
  readonly number: number;
  readonly socket: Socket;

  constructor(number: number, socket: Socket) {
    this.number = number;
    this.socket = socket;
  }

  say(...values: object[]): void {
    this.socket.write(Buffer.concat(values.map((value) => framed(canonicalBytes(value)))));
  }

  event(frame: Frame, sequence: number, payload: TransportEventPayload): object {
    return { schema_id: "gamecult.model.transport_event.v1", ...ids(frame), event: { sequence, payload } };
  }

  refused(frame: Frame, refusal: string): object {
    return { schema_id: "gamecult.model.transport_result.v1", ...ids(frame), disposition: { Refused: refusal } };
  }

  result(frame: Frame, payloads: TransportEventPayload[], outcome: TransportOutcome = COMPLETED): object {
    const { native_request_sha256, provider_request_sha256 } = frame as unknown as TransportInvocation;
    const receipt = {
      schema_id: "gamecult.model.transport_receipt.v1", ...ids(frame),
      cost_micro_usd: 7, foreign_reasoning_dropped: 0, model: "npc", provider: "provider", outcome,
      native_request_sha256, provider_request_sha256,
    };
    const events = payloads.map((payload, sequence) => ({ payload, sequence }));
    const disposition = { Transported: { events, receipt } };
    return { schema_id: "gamecult.model.transport_result.v1", ...ids(frame), disposition };
  }
}

const USAGE = { input_tokens: 3, cache_read_tokens: 0, cache_write_tokens: 0, output_tokens: 2 };
export const COMPLETED: TransportOutcome = { Completed: { stop_reason: "end_turn", usage: USAGE } };
export const text = (said: string): TransportEventPayload => ({ TextDelta: { text: said } });

export class FakeDaemon {
  readonly path: string;
  readonly hellos: Frame[] = [];
  /** What was sent besides hellos, on each connection: the bytes, too. */
  readonly received: { connection: number; frame: Frame; bytes: Buffer }[] = [];
  readonly #folder = mkdtempSync(join(tmpdir(), "sidecar-"));
  readonly #said: Said;
  readonly #welcome: object;
  readonly #sockets = new Set<Socket>();
  #connections = 0;
  #server: Server | undefined;

  constructor(said: Said, welcome: object = {}) {
    this.path = join(this.#folder, "s.sock");
    this.#said = said;
    this.#welcome = {
      schema_id: "gamecult.model.transport_welcome.v1", callers: ["dungeon"], frame_bytes_max: 100_000, join: true,
      protocol: 1, server: "fake", stream_events: true, ...welcome,
    };
  }

  async listen(): Promise<this> {
    this.#server = createServer((socket) => this.#serve(new Connection((this.#connections += 1), socket)));
    await new Promise<void>((resolve) => this.#server?.listen(this.path, resolve));
    return this;
  }

  /** From here on nobody is let in. */
  stopListening(): void {
    this.#server?.close();
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => (this.#server?.listening ? this.#server.close(resolve) : resolve(0)));
    rmSync(this.#folder, { recursive: true });
  }

  #serve(connection: Connection): void {
    const { socket } = connection;
    const splitter = new FrameSplitter();
    this.#sockets.add(socket);
    socket.on("error", () => {}); // the client may be gone
    socket.on("close", () => this.#sockets.delete(socket));
    socket.on("data", (bytes: Buffer) => {
      for (const whole of splitter.feed(bytes)) {
        const frame = decodeFrame(whole) as Frame;
        if (frame.schema_id === "gamecult.model.transport_hello.v1") {
          this.hellos.push(frame);
          connection.say(this.#welcome);
        } else {
          this.received.push({ connection: connection.number, frame, bytes: Buffer.from(whole) });
          this.#said(connection, frame);
        }
      }
    });
  }
}
