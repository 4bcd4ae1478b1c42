import assert from "node:assert/strict";
import { createServer } from "node:net";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { Connection, FakeDaemon, ids, text, type Frame, type Said } from "./fake-daemon.ts";
import {
  canonicalBytes, DaemonError, decodeFrame, Disconnected, framed, FrameSplitter, newRequest, NotADaemon, Refused,
  RequestFailed, SidecarClient, SidecarError, WhichCaller, type ConnectOptions, type TransportEvent,
} from "./sidecar.ts";

const INVOCATION = "gamecult.model.transport_invocation.v1";
const CANCEL = "gamecult.model.transport_cancel.v1";

async function fake(t: TestContext, said: Said, welcome: object = {}): Promise<FakeDaemon> {
  const daemon = await new FakeDaemon(said, welcome).listen();
  t.after(() => daemon.close());
  return daemon;
}

async function connected(t: TestContext, path: string, options: ConnectOptions = {}): Promise<SidecarClient> {
  const client = await SidecarClient.connect(path, { caller: "dungeon", reconnectSecondsMax: 5, ...options });
  t.after(() => client.close());
  return client;
}

/** Answers each invocation with one text. */
const answers = (said: string): Said => (connection, frame) => connection.say(connection.result(frame, [text(said)]));

const textOf = (events: readonly TransportEvent[]): string =>
  events.map(({ payload }) => ("TextDelta" in payload ? payload.TextDelta.text : "")).join("");

type Kind<T> = abstract new (...args: never[]) => T;

async function fault<T extends SidecarError>(promise: Promise<unknown>, kind: Kind<T>): Promise<T> {
  const caught: unknown = await promise.then(() => undefined, (thrown: unknown) => thrown);
  assert.ok(caught instanceof kind, `${String(caught)} is no ${kind.name}`);
  assert.ok(caught.advice.length > 0);
  return caught;
}

test("canonical bytes hold every whole number up to 2^64 - 1, and no other number", () => {
  for (const whole of [0, 127, 128, 2 ** 32 - 1, 2 ** 32, Number.MAX_SAFE_INTEGER, 2n ** 53n, 2n ** 64n - 1n]) {
    assert.deepEqual(decodeFrame(canonicalBytes({ whole })), { whole });
  }
  assert.equal(Buffer.from(canonicalBytes(2 ** 32)).toString("hex"), "cf0000000100000000");
  for (const odd of [-1, 0.5, NaN, 2 ** 53, 2n ** 64n, "half \ud800", () => 0]) {
    assert.throws(() => canonicalBytes(odd), TypeError);
  }
});

test("a long text keeps its byte order mark", () => {
  const value = { text: `\ufeff${"x".repeat(500)}` };
  assert.deepEqual(decodeFrame(canonicalBytes(value)), value);
});

test("any split of a stream gives the same frames", () => {
  const sizes = [1, 2, 300, 70_000];
  const stream = Buffer.concat(sizes.map((size) => framed(new Uint8Array(size).fill(size % 251))));
  for (const piece of [1, 2, 3, 5, 7, 4096, stream.length]) {
    const splitter = new FrameSplitter();
    const frames: Uint8Array[] = [];
    for (let at = 0; at < stream.length; at += piece) frames.push(...splitter.feed(stream.subarray(at, at + piece)));
    assert.deepEqual(frames.map((frame) => frame.length), sizes);
    assert.ok(frames.every((frame) => frame.every((byte) => byte === frame.length % 251)));
  }
});

test("an answer is a result, and the hello asks to join", async (t) => {
  const daemon = await fake(t, answers("Boo!"));
  const client = await connected(t, daemon.path);
  const request = newRequest("npc", "Who goes there?");
  const result = await client.invoke(request, { maxCostMicroUsd: 2n ** 64n - 1n });
  assert.deepEqual([result.text, result.stopReason, result.chargeMicroUsd], ["Boo!", "end_turn", 7]);
  const { client: name, schema_id: _, ...hello } = daemon.hellos[0]!;
  assert.deepEqual(hello, { protocol: 1, join: true, stream_events: true });
  assert.ok(name);
  assert.equal(daemon.received[0]?.frame["max_cost_micro_usd"], 2n ** 64n - 1n);
});

test("a request that breaks its type is told with the path, and nothing is sent", async (t) => {
  const daemon = await fake(t, answers(""));
  const client = await connected(t, daemon.path);
  const odd = { ...newRequest("npc", "hi"), tools: [{ name: "look", description: "", parameters: {} }] };
  await assert.rejects(client.invoke(odd as never), /request\.tools\[0\]\.parameters/);
  await assert.rejects(client.invoke(newRequest("no spaces", "hi")), /request\.model/);
  assert.throws(() => client.stream(newRequest("npc", "hi"), { maxCostMicroUsd: 0.5 }), /max_cost_micro_usd/);
  assert.equal(daemon.received.length, 0);
});

test("refusals, failures and the daemon's errors are typed, with what may be sent again", async (t) => {
  const failed = { Failed: { kind: "rate_limited", message: "slow down (the provider asks to wait 12.5 s)" } } as const;
  const daemon = await fake(t, (connection, frame) => {
    const asked = ids(frame).request_id;
    if (asked === "refused") connection.say(connection.refused(frame, "Capacity"));
    if (asked === "failed") connection.say(connection.result(frame, [text("half")], failed));
    const error = { schema_id: "gamecult.model.transport_error.v1", code: "shutting_down", message: "bye" };
    if (asked === "error") connection.say({ ...error, ...ids(frame) });
  });
  const client = await connected(t, daemon.path);
  const ask = (requestId: string): Promise<unknown> => client.invoke(newRequest("npc", "hi", { requestId }));
  const [refused, broken, error] = await Promise.all([
    fault(ask("refused"), Refused), fault(ask("failed"), RequestFailed), fault(ask("error"), DaemonError),
  ]);
  assert.deepEqual([refused.refusal, refused.retry], ["Capacity", "same_bytes"]);
  assert.deepEqual([broken.kind, broken.retry, broken.retryAfterSeconds], ["rate_limited", "new_id", 12.5]);
  assert.deepEqual([broken.usage, textOf(broken.events)], [undefined, "half"]);
  assert.deepEqual([error.code, error.retry], ["shutting_down", "same_bytes"]);
});

test("after a lost connection the identical bytes are sent again, behind another hello", async (t) => {
  const daemon = await fake(t, (connection, frame) => {
    if (connection.number < 3) connection.socket.destroy();
    else answers("at last")(connection, frame);
  });
  const client = await connected(t, daemon.path);
  assert.equal((await client.invoke(newRequest("npc", "hi"))).text, "at last");
  assert.equal(daemon.hellos.length, 3);
  assert.deepEqual(daemon.received.map(({ connection }) => connection), [1, 2, 3]);
  assert.ok(daemon.received.every(({ bytes }) => bytes.equals(daemon.received[0]!.bytes)));
});

test("a frame that loses every connection is given up", async (t) => {
  const daemon = await fake(t, (connection) => connection.socket.destroy());
  const client = await connected(t, daemon.path);
  const lost = await fault(client.invoke(newRequest("npc", "hi")), Disconnected);
  assert.deepEqual([lost.retry, daemon.received.length], ["same_bytes", 5]);
});

test("a daemon that comes late is found, and one that never comes is told", async (t) => {
  const daemon = new FakeDaemon(answers("awake"));
  const connecting = connected(t, daemon.path);
  await fault(SidecarClient.connect(daemon.path, { reconnectSecondsMax: 0 }), Disconnected);
  await daemon.listen();
  t.after(() => daemon.close());
  assert.equal((await (await connecting).invoke(newRequest("npc", "hi"))).text, "awake");
});

test("what is no daemon is told so at once", async (t) => {
  const garbage: [string, Uint8Array][] = [
    ["HTTP", Buffer.from("HTTP/1.1 400 Bad Request\r\n\r\n")],
    ["a length of 0", Buffer.alloc(4)],
    ["no MessagePack", framed(Buffer.from([0xc1]))],
    ["a schema_id of nobody's", framed(canonicalBytes({ schema_id: "constructor" }))],
    ["a value in place of a map", framed(canonicalBytes([1]))],
    ["a float", framed(Buffer.from("81a9736368656d615f6964cb3ff0000000000000", "hex"))],
    ["a welcome that lacks members", framed(canonicalBytes({ schema_id: "gamecult.model.transport_welcome.v1" }))],
    ["a status before the welcome", framed(canonicalBytes({ schema_id: "gamecult.model.transport_status_report.v1" }))],
  ];
  const folder = mkdtempSync(join(tmpdir(), "sidecar-"));
  t.after(() => rmSync(folder, { recursive: true }));
  for (const [name, bytes] of garbage) {
    const server = createServer((socket) => socket.on("error", () => {}).resume().end(bytes));
    const path = join(folder, "s.sock");
    await new Promise<void>((resolve) => server.listen(path, resolve));
    const told = await fault(SidecarClient.connect(path, { caller: "dungeon" }), NotADaemon);
    assert.equal(told.retry, "no", name);
    await new Promise((resolve) => server.close(resolve));
  }
});

test("an answer to what was not asked ends all that is unanswered", async (t) => {
  const odd: ((connection: Connection, frame: Frame) => object)[] = [
    (connection, frame) => ({ ...connection.refused(frame, "Expired"), request_id: "another" }),
    (connection, frame) => ({ ...connection.event(frame, 0, text("x")), request_id: "another" }),
    (connection, frame) => ({ ...connection.refused(frame, "TooGreen") }),
    (connection, frame) => ({ ...connection.refused(frame, "Expired"), extra: 1 }),
  ];
  for (const answer of odd) {
    const daemon = await fake(t, (connection, frame) => connection.say(answer(connection, frame)));
    const client = await connected(t, daemon.path);
    await fault(client.invoke(newRequest("npc", "hi")), NotADaemon);
  }
});

test("an error that names nobody is told to all that is unanswered", async (t) => {
  const daemon = await fake(t, (connection) => {
    if (daemon.received.length < 2) return;
    connection.say({ schema_id: "gamecult.model.transport_error.v1", code: "internal", message: "a bug" });
  });
  const client = await connected(t, daemon.path);
  const asked = ["a", "b"].map((said) => fault(client.invoke(newRequest("npc", said)), DaemonError));
  for (const { code, retry } of await Promise.all(asked)) assert.deepEqual([code, retry], ["internal", "same_bytes"]);
});

test("a stream hands events over as they come, and its pieces add up to the result", async (t) => {
  let finish = (): void => {};
  const call = { ToolCall: { arguments: "{}", call_id: "c1", name: "look" } };
  const daemon = await fake(t, (connection, frame) => {
    connection.say(connection.event(frame, 0, text("Who ")), connection.event(frame, 0, text("goes ")));
    finish = () => connection.say(connection.result(frame, [text("Who goes there?"), call, text("Hm.")]));
  });
  const client = await connected(t, daemon.path);
  const stream = client.stream(newRequest("npc", "hi"));
  const told: TransportEvent[] = [];
  for await (const event of stream) {
    told.push(event);
    if (told.length === 2) finish();
  }
  assert.deepEqual(told.map(({ sequence, payload }) => [sequence, payload]), [
    [0, text("Who ")], [0, text("goes ")], [0, text("there?")], [1, call], [2, text("Hm.")],
  ]);
  assert.equal((await stream.result).text, textOf(told));
});

test("live events that leave something out are dropped, and the result completes the stream", async (t) => {
  const daemon = await fake(t, (connection, frame) => {
    connection.say(connection.event(frame, 0, text("a")), connection.event(frame, 2, text("c")));
    connection.say(connection.event(frame, 3, text("d")));
    connection.say(connection.result(frame, ["a", "b", "c", "d"].map(text)));
  });
  const client = await connected(t, daemon.path);
  const told: TransportEvent[] = [];
  for await (const event of client.stream(newRequest("npc", "hi"))) told.push(event);
  assert.deepEqual(told.map(({ sequence }) => sequence), [0, 1, 2, 3]);
  assert.equal(textOf(told), "abcd");
});

test("a stream of what ran already begins in the middle of its text, says so, and its result stands", async (t) => {
  const daemon = await fake(t, (connection, frame) => {
    connection.say(connection.event(frame, 0, text("goes ")), connection.event(frame, 0, text("there?")));
    connection.say(connection.result(frame, [text("Who goes there?")]));
  });
  const client = await connected(t, daemon.path);
  const stream = client.stream(newRequest("npc", "hi"));
  const told: TransportEvent[] = [];
  for await (const event of stream) told.push(event);
  assert.equal(textOf(told), "goes there?");
  assert.equal(stream.isWhole, false);
  assert.equal((await stream.result).text, "Who goes there?");
});

test("live events that are not of the result are told, and the result stands", async (t) => {
  const daemon = await fake(t, (connection, frame) => {
    connection.say(connection.event(frame, 0, text("I")));
    connection.say(connection.result(frame, [text("Who goes there?")]));
  });
  const client = await connected(t, daemon.path);
  const stream = client.stream(newRequest("npc", "hi"));
  await assert.rejects(async () => {
    for await (const _ of stream);
  }, (told) => told instanceof NotADaemon);
  assert.equal((await stream.result).text, "Who goes there?");
});

test("a reader who never reads holds up nobody, and still gets all of it", async (t) => {
  const piece = "x".repeat(1000);
  const daemon = await fake(t, (connection, frame) => {
    if (ids(frame).request_id !== "slow") return answers("quick")(connection, frame);
    for (let at = 0; at < 500; at += 1) connection.say(connection.event(frame, 0, text(piece)));
    connection.say(connection.result(frame, [text(piece.repeat(500))]));
  });
  const client = await connected(t, daemon.path, { streamHeldBytesMax: 10_000 });
  const slow = client.stream(newRequest("npc", "hi", { requestId: "slow" }));
  assert.equal((await client.invoke(newRequest("npc", "hi"))).text, "quick");
  const told: TransportEvent[] = [];
  for await (const event of slow) told.push(event);
  assert.ok(told.length > 2 && told.length < 12, `${told.length} pieces`);
  assert.equal(textOf(told), piece.repeat(500));
});

test("a stream whose connection was lost goes on from the result", async (t) => {
  const daemon = await fake(t, (connection, frame) => {
    if (connection.number === 1) {
      connection.say(connection.event(frame, 0, text("Who ")));
      connection.socket.end();
    } else {
      connection.say(connection.event(frame, 0, text("there?")), connection.result(frame, [text("Who goes there?")]));
    }
  });
  const client = await connected(t, daemon.path);
  const told: TransportEvent[] = [];
  for await (const event of client.stream(newRequest("npc", "hi"))) told.push(event);
  assert.deepEqual(told.map(({ payload }) => payload), [text("Who "), text("goes there?")]);
});

test("a stream that ends badly gives its events, then throws, and so does its result", async (t) => {
  const failed = { Failed: { kind: "timeout", message: "late" } } as const;
  const daemon = await fake(t, (connection, frame) => connection.say(connection.result(frame, [text("half")], failed)));
  const client = await connected(t, daemon.path);
  const stream = client.stream(newRequest("npc", "hi"));
  const told: TransportEvent[] = [];
  await assert.rejects(async () => {
    for await (const event of stream) told.push(event);
  }, RequestFailed);
  assert.equal(textOf(told), "half");
  await fault(stream.result, RequestFailed);
});

test("an end without the events that came live is told as what it is", async (t) => {
  const failed = { Failed: { kind: "result_size", message: "too much" } } as const;
  const daemon = await fake(t, (connection, frame) => {
    connection.say(connection.event(frame, 0, text("so far")));
    const isLarge = ids(frame).request_id === "large";
    connection.say(isLarge ? connection.result(frame, [], failed) : connection.refused(frame, "Indeterminate"));
  });
  const client = await connected(t, daemon.path);
  for (const [requestId, kind] of [["large", RequestFailed], ["crashed", Refused]] as const) {
    const told: TransportEvent[] = [];
    await assert.rejects(async () => {
      for await (const event of client.stream(newRequest("npc", "hi", { requestId }))) told.push(event);
    }, kind);
    assert.equal(textOf(told), "so far");
  }
});

test("the same bytes share one frame, other bytes under their id are refused unsent", async (t) => {
  const daemon = await fake(t, (connection, frame) => {
    setImmediate(() => answers("once")(connection, frame));
  });
  const client = await connected(t, daemon.path);
  const invocation = client.prepare(newRequest("npc", "hi", { requestId: "one" }));
  const both = [client.invoke(invocation), client.stream(invocation).result];
  const other = await fault(client.invoke(newRequest("npc", "other", { requestId: "one" })), Refused);
  assert.equal(other.refusal, "ReplayConflict");
  assert.deepEqual((await Promise.all(both)).map((result) => result.text), ["once", "once"]);
  assert.equal(daemon.received.length, 1);
});

test("quotes under one id are asked one after the other, and a quote's bytes are the invocation's", async (t) => {
  let under = 0;
  const daemon = await fake(t, (connection, frame) => {
    if (frame.schema_id === INVOCATION) return answers("done")(connection, frame);
    assert.equal((under += 1), 1);
    setImmediate(() => {
      under -= 1;
      const cost = (frame["invocation"] as { max_cost_micro_usd: number }).max_cost_micro_usd;
      const quoted = { schema_id: "gamecult.model.transport_quoted.v1", ...ids(frame), worst_case_micro_usd: 5 };
      connection.say({ ...quoted, ...(cost < 5 ? { refusal: "CostBound" } : {}) });
    });
  });
  const client = await connected(t, daemon.path);
  const request = newRequest("npc", "hi");
  const [dear, invocation] = [client.prepare(request, { maxCostMicroUsd: 1 }), client.prepare(request)];
  assert.deepEqual(await Promise.all([client.quote(dear), client.quote(invocation)]), [
    { refusal: "CostBound", worstCaseMicroUsd: 5 }, { refusal: null, worstCaseMicroUsd: 5 },
  ]);
  await client.invoke(invocation);
  assert.deepEqual(daemon.received[1]?.frame["invocation"], daemon.received[2]?.frame);
});

test("a cancel follows its request, also after a loss", async (t) => {
  const seen: string[] = [];
  const cancelled = { Failed: { kind: "timeout", message: "cancelled" } } as const;
  const daemon = await fake(t, (connection, frame) => {
    seen.push(frame.schema_id);
    if (frame.schema_id !== CANCEL) return;
    if (connection.number === 1) connection.socket.destroy();
    else connection.say(connection.result(daemon.received[0]!.frame, [], cancelled));
  });
  const client = await connected(t, daemon.path);
  const asked = client.invoke(newRequest("npc", "hi", { requestId: "one" }));
  await client.cancel("one");
  assert.equal((await fault(asked, RequestFailed)).kind, "timeout");
  assert.deepEqual(seen, [INVOCATION, CANCEL, INVOCATION, CANCEL]);
});

test("a cancel for a caller that this user may not be is refused and not sent", async (t) => {
  const daemon = await fake(t, () => {});
  const client = await connected(t, daemon.path, { caller: "tavern" });
  assert.equal((await fault(client.cancel("one"), Refused)).refusal, "IdentitySubstitution");
  assert.deepEqual(daemon.received, []);
});

test("what is cancelled before it was sent is never sent", async (t) => {
  const daemon = await fake(t, (connection) => {
    connection.socket.destroy();
    daemon.stopListening();
  });
  const client = await connected(t, daemon.path, { reconnectSecondsMax: 0 });
  await fault(client.invoke(newRequest("npc", "hi")), Disconnected);
  const unsent = client.invoke(newRequest("npc", "hi", { requestId: "unsent" }));
  await client.cancel("unsent");
  assert.match((await fault(unsent, Disconnected)).advice, /has not run/);
});

test("requests above the bound are refused unsent, and so is a frame that the daemon would not take", async (t) => {
  const daemon = await fake(t, () => {}, { frame_bytes_max: 2000 });
  const client = await connected(t, daemon.path, { unansweredMax: 1 });
  const large = await fault(client.invoke(newRequest("npc", "x".repeat(2000))), DaemonError);
  assert.deepEqual([large.code, large.retry], ["frame_size", "no"]);
  const waiting = client.invoke(newRequest("npc", "hi"));
  assert.equal((await fault(client.invoke(newRequest("npc", "hi")), Refused)).refusal, "Capacity");
  assert.equal((await fault(client.status(), Refused)).refusal, "Capacity");
  client.close();
  await fault(waiting, Disconnected);
  await fault(client.invoke(newRequest("npc", "hi")), Disconnected);
  assert.ok(daemon.received.length <= 1);
});

test("an answer that does not come in time is given up, and what else waits is asked again", async (t) => {
  const daemon = await fake(t, (connection, frame) => {
    if (ids(frame).request_id === "patient" && connection.number > 1) answers("here")(connection, frame);
  });
  const client = await connected(t, daemon.path, { answerSecondsMax: 0.1 });
  const patient = client.invoke(newRequest("npc", "hi", { requestId: "patient" }));
  const late = await fault(client.invoke(newRequest("npc", "hi"), { expiresAtUnixMs: 1 }), Disconnected);
  assert.equal(late.retry, "same_bytes");
  assert.equal((await patient).text, "here");
});

test("the caller is found in the welcome where it names one, and asked for where it names more", async (t) => {
  const one = await fake(t, () => {});
  const client = await SidecarClient.connect(one.path);
  assert.equal(client.caller, "dungeon");
  client.close();
  const two = await fake(t, () => {}, { callers: ["dungeon", "tavern"] });
  assert.deepEqual((await fault(SidecarClient.connect(two.path), WhichCaller)).callers, ["dungeon", "tavern"]);
});

/** A generator of whole numbers below `end` that always gives the same ones. */
function dice(seed: number): (end: number) => number {
  let state = seed;
  return (end) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * end);
  };
}

/** Answers with words, some of them live, cut anywhere; now and then a connection is lost. */
function troubled(throwDice: (end: number) => number): Said {
  const recorded = new Map<string, string[]>();
  let lossesLeft = 3;
  const outgoing = new Map<Connection, Buffer>();
  const pump = (connection: Connection): void => {
    const waiting = outgoing.get(connection) ?? Buffer.alloc(0);
    const cut = throwDice(Math.min(waiting.length, 400) + 1);
    connection.socket.write(waiting.subarray(0, cut));
    outgoing.set(connection, waiting.subarray(cut));
    if (throwDice(60) === 0 && lossesLeft > 0) {
      lossesLeft -= 1;
      connection.socket.destroy();
    } else if (cut < waiting.length) {
      setImmediate(pump, connection);
    }
  };
  return (connection, frame) => {
    const asked = ids(frame).request_id;
    const fresh = Array.from({ length: throwDice(30) + 1 }, (_, at) => `${asked}-${at} \u{1f409} `);
    const words = recorded.get(asked) ?? fresh;
    const spoken = recorded.has(asked) ? [] : words.slice(0, throwDice(words.length + 1));
    recorded.set(asked, words);
    const values = [
      ...spoken.map((word) => connection.event(frame, 0, text(word))),
      connection.result(frame, [text(words.join("")), { ToolCall: { arguments: "{}", call_id: asked, name: "look" } }]),
    ];
    const frames = values.map((value) => framed(canonicalBytes(value)));
    const wasIdle = (outgoing.get(connection)?.length ?? 0) === 0;
    outgoing.set(connection, Buffer.concat([outgoing.get(connection) ?? Buffer.alloc(0), ...frames]));
    if (wasIdle) setImmediate(pump, connection);
  };
}

test("whatever is cut, dropped and lost, each request gets its own answer, and its pieces add up to it", async (t) => {
  for (let seed = 1; seed <= 25; seed += 1) {
    const daemon = await fake(t, troubled(dice(seed)));
    const client = await connected(t, daemon.path);
    const read = async (requestId: string): Promise<void> => {
      const stream = client.stream(newRequest("npc", "hi", { requestId }));
      const told: TransportEvent[] = [];
      for await (const event of stream) told.push(event);
      const { text: whole, toolCalls } = await stream.result;
      assert.ok(whole.startsWith(`${requestId}-0 `), `seed ${seed}`);
      assert.deepEqual([textOf(told), toolCalls.map((call) => call.call_id)], [whole, [requestId]], `seed ${seed}`);
    };
    await Promise.all(Array.from({ length: 12 }, (_, at) => read(`r${at}`)));
    const sent = new Map<string, Buffer>();
    for (const { frame, bytes } of daemon.received) {
      const before = sent.get(ids(frame).request_id) ?? bytes;
      assert.ok(before.equals(bytes), `seed ${seed}`);
      sent.set(ids(frame).request_id, before);
    }
    client.close();
  }
});
