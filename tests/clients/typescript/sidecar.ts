/**
 * A client for the sidecar daemon, in one file: copy it into your project. It needs Node 20 and @msgpack/msgpack 3.
 *
 *     const client = await SidecarClient.connect("run/requests.sock", { caller: "dungeon" });
 *     const result = await client.invoke(newRequest("npc-fast", "Who goes there?"));
 *     console.log(result.text, result.chargeMicroUsd);
 *
 *     const stream = client.stream(newRequest("npc-fast", "Sing!"));
 *     for await (const { payload } of stream) if ("TextDelta" in payload) process.stdout.write(payload.TextDelta.text);
 *     const { receipt } = await stream.result;
 *     client.close(); // until then the connection keeps the process running
 *
 * A completed answer is returned; all else is thrown: `Refused`, `RequestFailed`, `DaemonError`, `Disconnected`,
 * `NotADaemon`, `WhichCaller`, each with `advice` and with `retry`, which says what may be sent again. A TypeError or
 * RangeError is a mistake in the program, and nothing was sent.
 *
 * A lost connection is opened again, and the identical bytes of what is unanswered are sent again. That is safe: the
 * daemon answers the same bytes from its record, or joins them to the request that runs. Nothing is ever sent under a
 * new id by itself, so nothing is ever paid twice.
 *
 * Names in snake_case are the wire's own. Whole numbers above 2^53 - 1 are bigints (`U64`).
 */
import { createHash, randomUUID } from "node:crypto";
import { connect as openSocket, type Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { decode, encode } from "@msgpack/msgpack";

// --- what the daemon publishes ---------------------------------------------------------------------------------------

/** 0 to 2^64 - 1: a number where it is exact, up to 2^53 - 1, and a bigint above. `BigInt(value)` makes them alike. */
export type U64 = number | bigint;
/** SHA-256 as the wire carries it: 32 integers. */
export type Digest = number[];

export type CacheRetention = "short" | "long";
export type ReasoningEffort = "low" | "medium" | "high" | "max";
export type ToolChoice = "auto" | "required";

export interface ToolCall {
  arguments: string;
  call_id: string;
  name: string;
}

export interface ReasoningState {
  model: string;
  provider: string;
  state: Uint8Array;
}

export type InputItem =
  | { UserText: { text: string } }
  | { AssistantText: { text: string } }
  | { ToolCall: ToolCall }
  | { ToolResult: { call_id: string; output: string } }
  | { ReasoningState: ReasoningState };

export interface ToolDefinition {
  description: string;
  name: string;
  parameters_json: string;
}

export interface ProviderRequest {
  cache_retention?: CacheRetention;
  conversation_id: string;
  input: InputItem[];
  instructions: string;
  max_output_tokens: number;
  model: string;
  output_schema_json?: string;
  parallel_tool_calls: boolean;
  reasoning_effort?: ReasoningEffort;
  request_id: string;
  schema_id: "gamecult.model.provider_request.v1";
  tool_choice: ToolChoice;
  tools: ToolDefinition[];
}

export interface TransportInvocation {
  caller_runtime_id: string;
  expires_at_unix_ms: U64;
  max_cost_micro_usd: U64;
  native_request_sha256: Digest;
  provider_request_sha256: Digest;
  request: ProviderRequest;
  schema_id: "gamecult.model.transport_invocation.v1";
}

/** Tokens; cache reads and writes are apart from plain input, reasoning is inside output. */
export interface Usage {
  cache_read_tokens: U64;
  cache_write_tokens: U64;
  input_tokens: U64;
  output_tokens: U64;
  reasoning_tokens?: U64;
}

export type StopReason =
  | "end_turn" | "tool_use" | "max_output_tokens" | "stop_sequence" | "refusal" | "context_window";
export type FailureKind =
  | "result_size" | "invalid_request" | "authentication" | "rate_limited" | "unavailable" | "timeout" | "provider";

export interface Completed {
  provider_response_id?: string;
  stop_reason: StopReason;
  usage: Usage;
}

/** Without `usage` it is not known what the provider billed, and the whole reservation is charged. */
export interface Failed {
  kind: FailureKind;
  message: string;
  usage?: Usage;
}

export type TransportOutcome = { Completed: Completed } | { Failed: Failed };

export type TransportEventPayload =
  | { TextDelta: { text: string } }
  | { ToolCall: ToolCall }
  | { ReasoningState: { state: Uint8Array } };

export interface TransportEvent {
  payload: TransportEventPayload;
  sequence: U64;
}

export interface TransportReceipt {
  caller_runtime_id: string;
  cost_micro_usd: U64;
  foreign_reasoning_dropped: number;
  model: string;
  native_request_sha256: Digest;
  outcome: TransportOutcome;
  provider: string;
  provider_request_sha256: Digest;
  request_id: string;
  schema_id: "gamecult.model.transport_receipt.v1";
}

export type Refusal =
  | "Expired" | "IdentitySubstitution" | "ProviderDigestSubstitution" | "ModelNotAllowed" | "OutputBound"
  | "PayloadBound" | "Capacity" | "InFlight" | "Indeterminate" | "ReplayConflict" | "Malformed"
  | "ForeignReasoningState" | "ProviderRejected" | "CostBound" | "SpendCeiling";

export type TransportDisposition =
  | { Refused: Refusal }
  | { Transported: { events: TransportEvent[]; receipt: TransportReceipt } };

export interface TransportResult {
  caller_runtime_id: string;
  disposition: TransportDisposition;
  request_id: string;
  schema_id: "gamecult.model.transport_result.v1";
}

export type TransportErrorCode =
  | "not_admitted" | "too_many_connections" | "frame_size" | "frame_timeout" | "unsupported_protocol"
  | "malformed_frame" | "unknown_schema" | "ledger_unavailable" | "shutting_down" | "internal";

export interface TransportError {
  caller_runtime_id?: string;
  code: TransportErrorCode;
  message: string;
  request_id?: string;
  schema_id: "gamecult.model.transport_error.v1";
}

export interface TransportHello {
  client: string;
  join: boolean;
  protocol: number;
  schema_id: "gamecult.model.transport_hello.v1";
  stream_events: boolean;
}

export interface TransportWelcome {
  callers: string[];
  frame_bytes_max: number;
  join: boolean;
  protocol: number;
  schema_id: "gamecult.model.transport_welcome.v1";
  server: string;
  stream_events: boolean;
}

export interface TransportQuote {
  invocation: TransportInvocation;
  schema_id: "gamecult.model.transport_quote.v1";
}

/** Without a `refusal` it would be admitted, joined or replayed; without a worst case, a rule before it refuses. */
export interface TransportQuoted {
  caller_runtime_id: string;
  refusal?: Refusal;
  request_id: string;
  schema_id: "gamecult.model.transport_quoted.v1";
  worst_case_micro_usd?: U64;
}

export interface TransportCancel {
  caller_runtime_id: string;
  request_id: string;
  schema_id: "gamecult.model.transport_cancel.v1";
}

export interface TransportStatus {
  schema_id: "gamecult.model.transport_status.v1";
}

/** One event as the provider produces it; the pieces of one text share a sequence. */
export interface LiveEvent {
  caller_runtime_id: string;
  event: TransportEvent;
  request_id: string;
  schema_id: "gamecult.model.transport_event.v1";
}

export interface DaemonStatus {
  connections: number;
  connections_max: number;
  draining: boolean;
  ledger: "ready" | "pressure" | "failed";
  live_requests: number;
  now_unix_ms: U64;
  requests_in_flight_max: number;
  server: string;
  started_at_unix_ms: U64;
}

export interface CallerStatus {
  caller_runtime_id: string;
  ceiling_micro_usd: U64;
  indeterminate: U64;
  live_requests: number;
  over_runs: U64;
  reserved_micro_usd: U64;
  spent_micro_usd: U64;
  window_seconds: U64;
  window_start_unix_ms: U64;
}

/** Micro-USD per million tokens. */
export interface PriceRow {
  above_input_tokens?: U64;
  cache_read: U64;
  cache_write_long: U64;
  cache_write_short: U64;
  input: U64;
  output: U64;
}

export interface ModelStatus {
  connector: string;
  name: string;
  output_tokens_max: number;
  prices: PriceRow[];
  upstream: string;
}

export interface ConnectorStatus {
  concurrent_requests_max: number;
  kind: string;
  live_requests: number;
  name: string;
}

export interface TransportStatusReport {
  callers: CallerStatus[];
  connectors: ConnectorStatus[];
  daemon: DaemonStatus;
  models: ModelStatus[];
  schema_id: "gamecult.model.transport_status_report.v1";
}

// --- what may be wrong, and what to do -------------------------------------------------------------------------------

/**
 * `same_bytes`: send the very same again, now or as `advice` says (invoke with what `prepare` gave);
 * `new_id`: what is sent again is another request, and takes a new `request_id`; `no`: something must change first.
 */
export type Retry = "same_bytes" | "new_id" | "no";

const REFUSALS: Readonly<Record<Refusal, readonly [Retry, string]>> = {
  IdentitySubstitution: ["no", "use a caller that the daemon's config gives to this user"],
  PayloadBound: ["no", "send less history, or raise the caller's payload_bytes_max"],
  Malformed: ["no", "fix the request: the daemon's log says which member breaks which rule"],
  Expired: ["new_id", "ask again with an expiry about a minute ahead; compare the clocks where that does not help"],
  ProviderDigestSubstitution: ["no", "the digest is of another request: don't change what is prepared"],
  ModelNotAllowed: ["no", "fix the model's name, or the caller's models in the daemon's config"],
  OutputBound: ["no", "ask for fewer max_output_tokens"],
  CostBound: ["no", "raise maxCostMicroUsd, or shorten the request"],
  ReplayConflict: ["no", "another request has this id: give a new one a new id, and a retry the bytes it had before"],
  InFlight: ["same_bytes", "this very request is running: wait, then send the same bytes again"],
  Indeterminate: ["no", "a crash left open whether it ran: a person decides, for a new id may pay twice"],
  ForeignReasoningState: ["no", "leave the other provider's reasoning states out"],
  ProviderRejected: ["no", "the provider is known not to take this: change the request"],
  Capacity: ["same_bytes", "all slots are in use: try again shortly"],
  SpendCeiling: ["new_id", "wait for the caller's next spend window, or raise its ceiling"],
};

const FAILURES: Readonly<Record<FailureKind, readonly [Retry, string]>> = {
  invalid_request: ["no", "the provider does not take this request: change it"],
  authentication: ["no", "a person looks after the daemon's credential, or the account behind it"],
  rate_limited: ["new_id", "wait, as long as retryAfterSeconds where it is known, then ask with a new id"],
  unavailable: ["new_id", "ask again with a new id: the provider could not be reached, or broke off"],
  timeout: ["new_id", "ask again with a new id and more time; what is cancelled ends like this, too"],
  provider: ["no", "read the message: the provider's answer made no sense, and seldom will"],
  result_size: ["no", "ask for less: the answer was larger than a bound of the daemon's"],
};

const CODES: Readonly<Record<TransportErrorCode, readonly [Retry, string]>> = {
  not_admitted: ["no", "this user is no caller of the daemon: see its config"],
  too_many_connections: ["same_bytes", "share one client, or try again later"],
  frame_size: ["no", "send less, or raise the daemon's frame_bytes_max"],
  frame_timeout: ["same_bytes", "a frame was sent too slowly: send it again"],
  unsupported_protocol: ["no", "the daemon speaks another protocol: use its client"],
  malformed_frame: ["no", "fix the client: the message says what is wrong"],
  unknown_schema: ["no", "the daemon is older than this client: update it"],
  ledger_unavailable: ["same_bytes", "nothing was recorded: send it again once the disk has room"],
  shutting_down: ["same_bytes", "send it again after the restart"],
  internal: ["same_bytes", "only the same bytes are safe to send again; the daemon's log says more"],
};

/** With these the daemon ends the connection. */
const CLOSING: ReadonlySet<TransportErrorCode> = new Set([
  "not_admitted", "too_many_connections", "frame_size", "frame_timeout", "unsupported_protocol",
]);

/** Whatever this client throws, but for mistakes in the program. */
export class SidecarError extends Error {
  /** What to do, as a sentence for a person. */
  readonly advice: string;
  readonly retry: Retry;

  constructor(message: string, advice: string, retry: Retry) {
    super(message);
    this.name = new.target.name;
    this.advice = advice;
    this.retry = retry;
  }
}

/** It ran nothing and cost nothing. */
export class Refused extends SidecarError {
  readonly refusal: Refusal;

  constructor(refusal: Refusal) {
    super(`refused: ${refusal}`, REFUSALS[refusal][1], REFUSALS[refusal][0]);
    this.refusal = refusal;
  }
}

/** A failed outcome: it is on record, and charged. `events` came before it failed. */
export class RequestFailed extends SidecarError {
  readonly kind: FailureKind;
  readonly usage: Usage | undefined;
  readonly receipt: TransportReceipt;
  readonly events: readonly TransportEvent[];
  /** How long the provider asks to wait, where it does. */
  readonly retryAfterSeconds: number | undefined;

  constructor(failed: Failed, receipt: TransportReceipt, events: readonly TransportEvent[]) {
    super(`${failed.kind}: ${failed.message}`, FAILURES[failed.kind][1], FAILURES[failed.kind][0]);
    this.kind = failed.kind;
    this.usage = failed.usage;
    this.receipt = receipt;
    this.events = events;
    const wait = /\(the provider asks to wait ([0-9][0-9.e+-]*) s\)$/.exec(failed.message)?.[1];
    this.retryAfterSeconds = wait === undefined ? undefined : Number(wait);
  }
}

/** What the daemon says where no refusal can say it. */
export class DaemonError extends SidecarError {
  readonly code: TransportErrorCode;

  constructor(code: TransportErrorCode, message: string) {
    super(`${code}: ${message}`, CODES[code][1], CODES[code][0]);
    this.code = code;
  }
}

const NO_DAEMON_ADVICE = "start the daemon, or wait for it, then send the same bytes";
const CLOSED_ADVICE = "send the same bytes with a client that is open: what was sent goes on";
const NO_ANSWER_ADVICE = "send the same bytes again later: it may be running still, or be on record";

/** No daemon is there, or it was lost and did not come back in time. What was sent may have run. */
export class Disconnected extends SidecarError {
  constructor(message: string, advice = NO_DAEMON_ADVICE, retry: Retry = "same_bytes") {
    super(message, advice, retry);
  }
}

const NOT_A_DAEMON_ADVICE = "look at the socket's path; an invocation that was sent is safe to send again";

/** What listens there says what no daemon says. */
export class NotADaemon extends SidecarError {
  constructor(message: string) {
    super(message, NOT_A_DAEMON_ADVICE, "no");
  }
}

/** No caller was named, and the welcome does not leave just one; nothing was sent. */
export class WhichCaller extends SidecarError {
  readonly callers: readonly string[];

  constructor(callers: readonly string[]) {
    const told = `this user may call as ${callers.join(", ") || "nobody"}`;
    super(told, "name the caller: connect(path, { caller })", "no");
    this.callers = callers;
  }
}

// --- canonical bytes -------------------------------------------------------------------------------------------------

/** Members that are bin; every other one that is not a map, an array, a number or a flag is text. */
const BIN_MEMBERS: ReadonlySet<string> = new Set(["state", "response"]);
const ITEMS_MAX = 2 ** 20;
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * The one byte form of a value, which digests are over: sorted keys, shortest headers, nil members left out.
 * Throws TypeError for what has no such form: fractions, unsafe or negative numbers, lone surrogates.
 */
export function canonicalBytes(value: unknown): Uint8Array {
  return encode(plain(value), { sortKeys: true, useBigInt64: true });
}

export function sha256(bytes: Uint8Array): Digest {
  return [...createHash("sha256").update(bytes).digest()];
}

/**
 * What the package writes canonically. With `useBigInt64` it writes numbers from 2^32 on as floats, and every bigint
 * with eight bytes; so a number stands below 2^32 and a bigint from there on. It would also write nil members, and
 * lone surrogates as what is no UTF-8. All published keys are ASCII, so its order, by UTF-16 units, is the right one.
 */
function plain(value: unknown): unknown {
  if (value === null || typeof value === "boolean") return value;
  if (typeof value === "string") {
    if (/\p{Surrogate}/u.test(value)) throw new TypeError("a text has half a surrogate pair, which is no Unicode");
    return value;
  }
  if (typeof value === "number" || typeof value === "bigint") {
    if (typeof value === "number" && !Number.isSafeInteger(value)) {
      throw new TypeError(`${value} is no whole number up to 2^53 - 1; above, use a bigint`);
    }
    if (value < 0 || value >= 2n ** 64n) throw new TypeError(`${value} is not within 0 to 2^64 - 1`);
    return value < 2 ** 32 ? Number(value) : BigInt(value);
  }
  if (value instanceof Uint8Array) return value;
  if (Array.isArray(value)) return value.map(plain);
  if (!isMap(value)) throw new TypeError(`a ${typeof value} can't be sent`);
  const members = Object.entries(value).filter(([, member]) => member !== null && member !== undefined);
  return Object.fromEntries(members.map(([key, member]) => [key, plain(member)]));
}

/**
 * The value of a frame. What the daemon sends is canonical; whatever is not (floats, a key twice, bad UTF-8, bytes
 * behind the map ...) throws NotADaemon.
 */
export function decodeFrame(frame: Uint8Array): unknown {
  const lift = (value: unknown, member?: string): unknown => {
    if (value instanceof Uint8Array) return BIN_MEMBERS.has(member ?? "") ? new Uint8Array(value) : utf8.decode(value);
    if (typeof value === "bigint") return value <= Number.MAX_SAFE_INTEGER ? Number(value) : value;
    if (Array.isArray(value)) return value.map((item) => lift(item));
    if (!isMap(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, lift(inner, key)]));
  };
  try {
    // The package drops a byte order mark and takes bad UTF-8, so strings come as bytes and are decoded here.
    const limits = { maxArrayLength: ITEMS_MAX, maxMapLength: ITEMS_MAX };
    const value = lift(decode(frame, { rawStrings: true, useBigInt64: true, ...limits }));
    if (Buffer.compare(canonicalBytes(value), frame) !== 0) throw new TypeError("it is not canonical");
    return value;
  } catch (fault) {
    throw new NotADaemon(`a frame of ${frame.length} bytes is no MessagePack of the daemon's: ${reason(fault)}`);
  }
}

function isMap(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array);
}

function reason(fault: unknown): string {
  return fault instanceof Error ? fault.message : String(fault);
}

// --- checks of values ------------------------------------------------------------------------------------------------

/** Gives a value of the type back, without what it does not know; throws TypeError with the path of what is wrong. */
type Reader<T> = (value: unknown, path: string) => T;
type Optional<T> = { readonly optional: Reader<T> };
type Members<T> = { [K in keyof T]-?: {} extends Pick<T, K> ? Optional<Exclude<T[K], undefined>> : Reader<T[K]> };
type KeysOf<T> = T extends unknown ? keyof T : never;
type Alternatives<T> = { [K in KeysOf<T>]: Reader<Extract<T, Record<K, unknown>>[K]> };

function wrong(path: string, expected: string): TypeError {
  return new TypeError(`${path} must be ${expected}`);
}

const text: Reader<string> = (value, path) => {
  if (typeof value !== "string") throw wrong(path, "a text");
  return value;
};
const flag: Reader<boolean> = (value, path) => {
  if (typeof value !== "boolean") throw wrong(path, "true or false");
  return value;
};
const bin: Reader<Uint8Array> = (value, path) => {
  if (!(value instanceof Uint8Array)) throw wrong(path, "a Uint8Array");
  return new Uint8Array(value);
};
const upTo = (max: number): Reader<number> => (value, path) => {
  if (typeof value !== "number" || !Number.isInteger(value) || value < 0 || value > max) {
    throw wrong(path, `a whole number up to ${max}`);
  }
  return value;
};
const u32 = upTo(2 ** 32 - 1);
const u64: Reader<U64> = (value, path) => {
  const isWhole = typeof value === "bigint" || (typeof value === "number" && Number.isSafeInteger(value));
  if (!isWhole || value < 0 || value >= 2n ** 64n) throw wrong(path, "a whole number up to 2^64 - 1");
  return value <= Number.MAX_SAFE_INTEGER ? Number(value) : value;
};
const id: Reader<string> = (value, path) => {
  if (typeof value !== "string" || !/^[\x21-\x7e]{1,256}$/.test(value)) {
    throw wrong(path, "1 to 256 printable ASCII characters without spaces");
  }
  return value;
};
const word = <T extends string>(...words: readonly T[]): Reader<T> => (value, path) => {
  const found = words.find((one) => one === value);
  if (found === undefined) throw wrong(path, words.length > 1 ? `one of ${words.join(", ")}` : `${words[0]}`);
  return found;
};
const list = <T>(item: Reader<T>): Reader<T[]> => (value, path) => {
  if (!Array.isArray(value)) throw wrong(path, "an array");
  return value.map((inner, at) => item(inner, `${path}[${at}]`));
};
const digest: Reader<Digest> = (value, path) => {
  const bytes = list(upTo(255))(value, path);
  if (bytes.length !== 32) throw wrong(path, "32 integers");
  return bytes;
};
const maybe = <T>(reader: Reader<T>): Optional<T> => ({ optional: reader });

/** A map of these members and no others; nil is the same as absent. */
function map<T extends object>(members: Members<T>): Reader<T> {
  const known = Object.entries<Reader<unknown> | Optional<unknown>>(members);
  const names = new Set(known.map(([name]) => name));
  return (value, path) => {
    if (!isMap(value)) throw wrong(path, "a map");
    const unknown = Object.keys(value).find((name) => !names.has(name));
    if (unknown !== undefined) throw new TypeError(`${path}.${unknown} is no member that is known`);
    const read: Record<string, unknown> = {};
    for (const [name, reader] of known) {
      const member = value[name];
      if (typeof reader === "function") read[name] = reader(member, `${path}.${name}`);
      else if (member !== undefined && member !== null) read[name] = reader.optional(member, `${path}.${name}`);
    }
    return read as T; // every member was read by the reader that Members<T> demands for it
  };
}

/** A map with exactly one member, whose name says which alternative it is. */
function oneOf<T extends object>(alternatives: Alternatives<T>): Reader<T> {
  const known = new Map(Object.entries<Reader<unknown>>(alternatives));
  return (value, path) => {
    const [[name, member] = ["", null], ...others] = isMap(value) ? Object.entries(value) : [];
    const reader = known.get(name);
    if (reader === undefined || others.length > 0) {
      throw wrong(path, `a map with one of ${[...known.keys()].join(", ")}`);
    }
    return { [name]: reader(member, `${path}.${name}`) } as T; // by the reader that Alternatives<T> demands for it
  };
}

const anyText = map<{ text: string }>({ text });
const toolCall = map<ToolCall>({ arguments: text, call_id: id, name: id });
const inputItem = oneOf<InputItem>({
  UserText: anyText,
  AssistantText: anyText,
  ToolCall: toolCall,
  ToolResult: map<{ call_id: string; output: string }>({ call_id: id, output: text }),
  ReasoningState: map<ReasoningState>({ model: id, provider: id, state: bin }),
});
const providerRequest = map<ProviderRequest>({
  cache_retention: maybe(word("short", "long")),
  conversation_id: id,
  input: list(inputItem),
  instructions: text,
  max_output_tokens: u32,
  model: id,
  output_schema_json: maybe(text),
  parallel_tool_calls: flag,
  reasoning_effort: maybe(word("low", "medium", "high", "max")),
  request_id: id,
  schema_id: word("gamecult.model.provider_request.v1"),
  tool_choice: word("auto", "required"),
  tools: list(map<ToolDefinition>({ description: text, name: id, parameters_json: text })),
});
const transportInvocation = map<TransportInvocation>({
  caller_runtime_id: id,
  expires_at_unix_ms: u64,
  max_cost_micro_usd: u64,
  native_request_sha256: digest,
  provider_request_sha256: digest,
  request: providerRequest,
  schema_id: word("gamecult.model.transport_invocation.v1"),
});

const refusal = word(...(Object.keys(REFUSALS) as Refusal[]));
const usage = map<Usage>({
  cache_read_tokens: u64,
  cache_write_tokens: u64,
  input_tokens: u64,
  output_tokens: u64,
  reasoning_tokens: maybe(u64),
});
const outcome = oneOf<TransportOutcome>({
  Completed: map<Completed>({
    provider_response_id: maybe(text),
    stop_reason: word("end_turn", "tool_use", "max_output_tokens", "stop_sequence", "refusal", "context_window"),
    usage,
  }),
  Failed: map<Failed>({ kind: word(...(Object.keys(FAILURES) as FailureKind[])), message: text, usage: maybe(usage) }),
});
const transportEvent = map<TransportEvent>({
  payload: oneOf<TransportEventPayload>({
    TextDelta: anyText,
    ToolCall: map<ToolCall>({ arguments: text, call_id: text, name: text }),
    ReasoningState: map<{ state: Uint8Array }>({ state: bin }),
  }),
  sequence: u64,
});
const transportReceipt = map<TransportReceipt>({
  caller_runtime_id: text,
  cost_micro_usd: u64,
  foreign_reasoning_dropped: u32,
  model: text,
  native_request_sha256: digest,
  outcome,
  provider: text,
  provider_request_sha256: digest,
  request_id: text,
  schema_id: word("gamecult.model.transport_receipt.v1"),
});

/** Whatever the daemon may say to a client. */
export type FromDaemon =
  | TransportResult | TransportError | TransportWelcome | TransportQuoted | LiveEvent | TransportStatusReport;

const FROM_DAEMON: { readonly [K in FromDaemon["schema_id"]]: Reader<Extract<FromDaemon, { schema_id: K }>> } = {
  "gamecult.model.transport_result.v1": map<TransportResult>({
    caller_runtime_id: text,
    disposition: oneOf<TransportDisposition>({
      Refused: refusal,
      Transported: map<{ events: TransportEvent[]; receipt: TransportReceipt }>({
        events: list(transportEvent),
        receipt: transportReceipt,
      }),
    }),
    request_id: text,
    schema_id: word("gamecult.model.transport_result.v1"),
  }),
  "gamecult.model.transport_error.v1": map<TransportError>({
    caller_runtime_id: maybe(text),
    code: word(...(Object.keys(CODES) as TransportErrorCode[])),
    message: text,
    request_id: maybe(text),
    schema_id: word("gamecult.model.transport_error.v1"),
  }),
  "gamecult.model.transport_welcome.v1": map<TransportWelcome>({
    callers: list(text),
    frame_bytes_max: u32,
    join: flag,
    protocol: u32,
    schema_id: word("gamecult.model.transport_welcome.v1"),
    server: text,
    stream_events: flag,
  }),
  "gamecult.model.transport_quoted.v1": map<TransportQuoted>({
    caller_runtime_id: text,
    refusal: maybe(refusal),
    request_id: text,
    schema_id: word("gamecult.model.transport_quoted.v1"),
    worst_case_micro_usd: maybe(u64),
  }),
  "gamecult.model.transport_event.v1": map<LiveEvent>({
    caller_runtime_id: text,
    event: transportEvent,
    request_id: text,
    schema_id: word("gamecult.model.transport_event.v1"),
  }),
  "gamecult.model.transport_status_report.v1": map<TransportStatusReport>({
    callers: list(
      map<CallerStatus>({
        caller_runtime_id: text,
        ceiling_micro_usd: u64,
        indeterminate: u64,
        live_requests: u32,
        over_runs: u64,
        reserved_micro_usd: u64,
        spent_micro_usd: u64,
        window_seconds: u64,
        window_start_unix_ms: u64,
      }),
    ),
    connectors: list(
      map<ConnectorStatus>({ concurrent_requests_max: u32, kind: text, live_requests: u32, name: text }),
    ),
    daemon: map<DaemonStatus>({
      connections: u32,
      connections_max: u32,
      draining: flag,
      ledger: word("ready", "pressure", "failed"),
      live_requests: u32,
      now_unix_ms: u64,
      requests_in_flight_max: u32,
      server: text,
      started_at_unix_ms: u64,
    }),
    models: list(
      map<ModelStatus>({
        connector: text,
        name: text,
        output_tokens_max: u32,
        prices: list(
          map<PriceRow>({
            above_input_tokens: maybe(u64),
            cache_read: u64,
            cache_write_long: u64,
            cache_write_short: u64,
            input: u64,
            output: u64,
          }),
        ),
        upstream: text,
      }),
    ),
    schema_id: word("gamecult.model.transport_status_report.v1"),
  }),
};

/** What a frame of the daemon says, checked member by member. Throws NotADaemon. */
export function parseFromDaemon(frame: Uint8Array): FromDaemon {
  const value = decodeFrame(frame);
  const schemaId = isMap(value) ? value["schema_id"] : undefined;
  const reader = typeof schemaId === "string" && Object.hasOwn(FROM_DAEMON, schemaId)
    ? FROM_DAEMON[schemaId as FromDaemon["schema_id"]]
    : undefined;
  if (reader === undefined) throw new NotADaemon(`a frame of ${frame.length} bytes has no schema_id of the daemon's`);
  try {
    return reader(value, "$");
  } catch (fault) {
    throw new NotADaemon(`a frame of ${schemaId} is not as published: ${reason(fault)}`);
  }
}

// --- frames ----------------------------------------------------------------------------------------------------------

const PREFIX_BYTES = 4;
const FRAME_BYTES_LIMIT = 2 ** 24 - 1; // so the first byte of every frame is zero

/** The bytes that go over the socket for one encoded value. */
export function framed(encoded: Uint8Array): Buffer {
  const length = encoded.length;
  if (length === 0 || length > FRAME_BYTES_LIMIT) throw new RangeError(`a frame of ${length} bytes`);
  const bytes = Buffer.allocUnsafe(PREFIX_BYTES + length);
  bytes.writeUInt32BE(length);
  bytes.set(encoded, PREFIX_BYTES);
  return bytes;
}

/** Bytes in, whole frames out: any split of a stream gives the same frames. */
export class FrameSplitter {
  #part = Buffer.alloc(PREFIX_BYTES); // the length, or the frame, that is being filled
  #filled = 0;
  #inFrame = false;

  /** The frames that are whole with these bytes. Throws NotADaemon for a length that no frame has. */
  *feed(received: Uint8Array): Generator<Uint8Array> {
    for (let at = 0; at < received.length; ) {
      const taken = received.subarray(at, at + this.#part.length - this.#filled);
      this.#part.set(taken, this.#filled);
      this.#filled += taken.length;
      at += taken.length;
      if (!this.#inFrame && this.#part[0] !== 0) throw new NotADaemon("what comes are no frames");
      if (this.#filled < this.#part.length) return;
      const whole = this.#part;
      const length = this.#inFrame ? PREFIX_BYTES : whole.readUInt32BE();
      if (length === 0) throw new NotADaemon("a frame of 0 bytes");
      this.#part = Buffer.alloc(length);
      this.#filled = 0;
      this.#inFrame = !this.#inFrame;
      if (!this.#inFrame) yield whole;
    }
  }
}

// --- asking ----------------------------------------------------------------------------------------------------------

export interface RequestOptions {
  instructions?: string;
  tools?: ToolDefinition[];
  /** Default "auto". */
  toolChoice?: ToolChoice;
  /** Default false. */
  parallelToolCalls?: boolean;
  /** Default 512. */
  maxOutputTokens?: number;
  /** A fresh one by default. */
  conversationId?: string;
  /** A fresh one by default; each one is answered once, and then from the record. */
  requestId?: string;
  outputSchemaJson?: string;
  reasoningEffort?: ReasoningEffort;
  cacheRetention?: CacheRetention;
}

/** A request for what the user says, or for a whole history. */
export function newRequest(model: string, input: string | InputItem[], options: RequestOptions = {}): ProviderRequest {
  const { outputSchemaJson, reasoningEffort, cacheRetention } = options;
  return {
    schema_id: "gamecult.model.provider_request.v1",
    request_id: options.requestId ?? randomUUID(),
    conversation_id: options.conversationId ?? randomUUID(),
    model,
    instructions: options.instructions ?? "",
    input: typeof input === "string" ? [{ UserText: { text: input } }] : input,
    tools: options.tools ?? [],
    tool_choice: options.toolChoice ?? "auto",
    parallel_tool_calls: options.parallelToolCalls ?? false,
    max_output_tokens: options.maxOutputTokens ?? 512,
    ...(outputSchemaJson === undefined ? {} : { output_schema_json: outputSchemaJson }),
    ...(reasoningEffort === undefined ? {} : { reasoning_effort: reasoningEffort }),
    ...(cacheRetention === undefined ? {} : { cache_retention: cacheRetention }),
  };
}

export interface InvokeOptions {
  /** Default 100,000, which is ten cents; the request is refused where it could cost more. */
  maxCostMicroUsd?: U64;
  /** Default 60; the request ends by then. */
  timeoutSeconds?: number;
  /** In place of `timeoutSeconds`. */
  expiresAtUnixMs?: U64;
  /** For a caller that has a request format of its own; by default the digest of the request. */
  nativeRequestSha256?: Digest;
}

/** The invocation of a request, whose canonical bytes are what is sent. Throws TypeError with what is wrong in it. */
export function newInvocation(
  caller: string,
  request: ProviderRequest,
  options: InvokeOptions = {},
): TransportInvocation {
  const checked = providerRequest(request, "request");
  const provider = sha256(canonicalBytes(checked));
  const invocation: TransportInvocation = {
    schema_id: "gamecult.model.transport_invocation.v1",
    caller_runtime_id: caller,
    expires_at_unix_ms: options.expiresAtUnixMs ?? Date.now() + Math.ceil((options.timeoutSeconds ?? 60) * 1000),
    max_cost_micro_usd: options.maxCostMicroUsd ?? 100_000,
    native_request_sha256: options.nativeRequestSha256 ?? provider,
    provider_request_sha256: provider,
    request: checked,
  };
  return transportInvocation(invocation, "invocation");
}

export interface ConnectOptions {
  /** Who asks; by default the only one that this user may be. */
  caller?: string;
  /** What the daemon's log calls this program. */
  client?: string;
  /** Whether events come live; default true. Without it a stream's events come with its result. */
  streamEvents?: boolean;
  /** How long to look for a daemon that is not there, at first and after a loss; default 30. */
  reconnectSecondsMax?: number;
  /** How long to wait for a welcome, a quote, a status, and past its expiry for a result; default 30. */
  answerSecondsMax?: number;
  /** Requests, quotes and status that may wait for their answers at once; default 256. One more is `Capacity`. */
  unansweredMax?: number;
  /** Bytes of live events that wait for the reader of a stream; default 1 MiB. What is more comes with the result. */
  streamHeldBytesMax?: number;
}

/** A completed answer. */
export interface Result {
  text: string;
  toolCalls: ToolCall[];
  events: TransportEvent[];
  receipt: TransportReceipt;
  stopReason: StopReason;
  usage: Usage;
  chargeMicroUsd: U64;
}

/** What would be answered now, and what it could cost at most (null where a rule before the cost refuses). */
export interface Quote {
  refusal: Refusal | null;
  worstCaseMicroUsd: U64 | null;
}

/**
 * Events as they come, text in pieces under one sequence that add up to the result's; to be read once.
 * Where it does not complete, reading throws at its end, and so does `result`. Who leaves the loop leaves it running.
 */
export interface Stream extends AsyncIterable<TransportEvent> {
  /**
   * Whether the pieces add up to the result, known at the end. False where another process was running the very same
   * bytes already: what came live then began in the middle of the first text, and `result` has all of it.
   */
  readonly isWhole: boolean;
  readonly result: Promise<Result>;
}

/** Throws Refused or RequestFailed. */
function resultOf(answer: TransportResult): Result {
  if ("Refused" in answer.disposition) throw new Refused(answer.disposition.Refused);
  const { events, receipt } = answer.disposition.Transported;
  if ("Failed" in receipt.outcome) throw new RequestFailed(receipt.outcome.Failed, receipt, events);
  const { stop_reason: stopReason, usage: used } = receipt.outcome.Completed;
  return {
    text: events.map(({ payload }) => ("TextDelta" in payload ? payload.TextDelta.text : "")).join(""),
    toolCalls: events.flatMap(({ payload }) => ("ToolCall" in payload ? [payload.ToolCall] : [])),
    events,
    receipt,
    stopReason,
    usage: used,
    chargeMicroUsd: receipt.cost_micro_usd,
  };
}

const HELD_KEPT_MAX = 1024; // events that were read and are kept till then

/**
 * The events of one stream between the connection, which never waits, and a reader, who may be slow.
 * Live ones are taken while they follow each other from sequence 0 and there is room; the rest comes from the result.
 */
class EventBuffer implements Stream {
  readonly result: Promise<Result>;
  isWhole = true;
  readonly #requestId: string;
  readonly #heldBytesMax: number;
  #isLive: boolean;
  #isRead = true;
  #ended: SidecarError | "well" | undefined;
  #held: [event: TransportEvent, bytes: number][] = [];
  #heldBytes = 0;
  #at = 0; // of the next one in `held`
  readonly #taken: TransportEvent[] = []; // all that were taken live, pieces joined
  #wake: () => void = () => {};

  constructor(requestId: string, answer: Promise<TransportResult>, isLive: boolean, heldBytesMax: number) {
    this.#requestId = requestId;
    this.#isLive = isLive;
    this.#heldBytesMax = heldBytesMax;
    this.result = answer.then(resultOf);
    this.result.catch(() => {}); // whoever reads the events is told there
    answer.then(
      (result) => this.#end(result),
      (fault: SidecarError) => this.#endWith(fault),
    );
  }

  takeLive(event: TransportEvent, bytes: number): void {
    if (!this.#isLive) return;
    const last = this.#taken.at(-1);
    const isNext = event.sequence === this.#taken.length;
    const both = last !== undefined && event.sequence === this.#taken.length - 1
      ? joined(last.payload, event.payload)
      : undefined;
    if (this.#heldBytes + bytes > this.#heldBytesMax || !(isNext || both !== undefined)) {
      this.#isLive = false;
      return;
    }
    if (last !== undefined && both !== undefined) last.payload = both;
    else this.#taken.push({ ...event });
    this.#give(event, bytes);
  }

  /** What comes live from here on may not follow what has come. */
  stopLive(): void {
    this.#isLive = false;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<TransportEvent, void, undefined> {
    try {
      for (;;) {
        const next = this.#held[this.#at];
        if (next !== undefined) {
          this.#at += 1;
          this.#heldBytes -= next[1];
          if (this.#at >= HELD_KEPT_MAX) {
            this.#held = this.#held.slice(this.#at);
            this.#at = 0;
          }
          yield next[0];
        } else if (this.#ended === undefined) {
          await new Promise<void>((resolve) => (this.#wake = resolve));
        } else if (this.#ended === "well") {
          return;
        } else {
          throw this.#ended;
        }
      }
    } finally {
      this.#isRead = false;
      this.#isLive = false;
      this.#held = [];
    }
  }

  #give(event: TransportEvent, bytes: number): void {
    if (!this.#isRead) return;
    this.#held.push([event, bytes]);
    this.#heldBytes += bytes;
    this.#wake();
  }

  #end(answer: TransportResult): void {
    this.#isLive = false;
    const events = "Transported" in answer.disposition ? answer.disposition.Transported.events : [];
    const rest = this.#restOf(events);
    for (const event of rest ?? []) this.#give(event, 0); // the result holds them anyway
    try {
      resultOf(answer);
    } catch (fault) {
      // A refusal has no events, and a failure may have lost some of those that came live.
      return this.#endWith(fault as SidecarError); // resultOf throws no other
    }
    if (rest !== undefined) return this.#endWith("well");
    this.#endWith(new NotADaemon(`what came live of ${this.#requestId} is not of its result`));
  }

  #endWith(end: SidecarError | "well"): void {
    this.#isLive = false;
    this.#ended = end;
    this.#wake();
  }

  /** What of the recorded events was not given yet; undefined where what was given is none of them. */
  #restOf(events: readonly TransportEvent[]): TransportEvent[] | undefined {
    if (this.#taken.length > events.length) return undefined;
    const rest: TransportEvent[] = [];
    for (const [at, event] of events.entries()) {
      const taken = this.#taken[at];
      if (taken === undefined) {
        rest.push(event);
      } else if ("TextDelta" in taken.payload && "TextDelta" in event.payload) {
        const [given, whole] = [taken.payload.TextDelta.text, event.payload.TextDelta.text];
        const isLast = at === this.#taken.length - 1;
        const isLater = isLast ? whole.includes(given) && !whole.startsWith(given) : whole.endsWith(given);
        if (at === 0 && given !== whole && isLater) {
          this.isWhole = false;
          continue;
        }
        if (isLast ? !whole.startsWith(given) : whole !== given) return undefined;
        const missing = whole.slice(given.length);
        if (missing !== "") rest.push({ sequence: event.sequence, payload: { TextDelta: { text: missing } } });
      } else if (Buffer.compare(canonicalBytes(taken), canonicalBytes(event)) !== 0) {
        return undefined;
      }
    }
    return rest;
  }
}

function joined(before: TransportEventPayload, piece: TransportEventPayload): TransportEventPayload | undefined {
  if (!("TextDelta" in before && "TextDelta" in piece)) return undefined;
  return { TextDelta: { text: before.TextDelta.text + piece.TextDelta.text } };
}

/** A frame that was, or will be, sent. */
class Sent {
  readonly frame: Uint8Array;
  readonly streams = new Set<EventBuffer>();
  sends = 0;
  cancel: Uint8Array | undefined; // what cancels it, once somebody has
  reject!: (fault: SidecarError) => void;

  constructor(frame: Uint8Array) {
    this.frame = frame;
  }
}

type Line<Answer> = Map<string, Unanswered<Answer>>;

/** A frame that stands in its line until it is answered. */
class Unanswered<Answer> extends Sent {
  readonly answer: Promise<Answer>;
  resolve!: (answer: Answer) => void;

  constructor(frame: Uint8Array, line: Line<Answer>, key: string, timer: NodeJS.Timeout) {
    super(frame);
    line.set(key, this);
    const leave = (): void => {
      clearTimeout(timer);
      if (line.get(key) === this) line.delete(key);
    };
    this.answer = new Promise((resolve, reject) => {
      this.resolve = (answer) => (leave(), resolve(answer));
      this.reject = (fault) => (leave(), reject(fault));
    });
    this.answer.catch(() => {}); // whoever asked is told
  }
}

const SENDS_MAX = 5; // a frame that loses its connection that often is sent no more
const PAUSE_MS_MIN = 50;
const PAUSE_MS_MAX = 2000;
const TIMER_MS_MAX = 2 ** 31 - 1; // what setTimeout can count
const SOCKET_PATH_BYTES_MAX = 107; // what the kernel takes

const STATUS_KEY = "status"; // a status names nobody
const keyOf = (ids: { caller_runtime_id: string; request_id: string }): string =>
  `${ids.caller_runtime_id} ${ids.request_id}`; // ids have no spaces
const keyOfInvocation = (invocation: TransportInvocation): string =>
  keyOf({ caller_runtime_id: invocation.caller_runtime_id, request_id: invocation.request.request_id });

/** One connection to the daemon, opened again when it is lost; any number of requests share it. */
export class SidecarClient {
  readonly #path: string;
  readonly #hello: Uint8Array;
  readonly #reconnectSecondsMax: number;
  readonly #answerSecondsMax: number;
  readonly #unansweredMax: number;
  readonly #streamHeldBytesMax: number;
  readonly #invocations: Line<TransportResult> = new Map();
  readonly #quotes: Line<TransportQuoted> = new Map();
  readonly #statuses: Line<TransportStatusReport> = new Map();
  readonly #closing = new AbortController();
  #caller: string | undefined;
  #opened: Socket | undefined; // the last one
  #socket: Socket | undefined; // the one that has said welcome
  #welcome: TransportWelcome | undefined;
  #opening: Promise<void> | undefined;
  #losses = 0; // in a row, without an answer between them
  #waiting = 0; // for their turn

  private constructor(path: string, options: ConnectOptions) {
    if (Buffer.byteLength(path) > SOCKET_PATH_BYTES_MAX) {
      throw new RangeError(`a socket's path has at most ${SOCKET_PATH_BYTES_MAX} bytes: ${path}`);
    }
    this.#path = path;
    this.#caller = options.caller === undefined ? undefined : id(options.caller, "caller");
    this.#reconnectSecondsMax = options.reconnectSecondsMax ?? 30;
    this.#answerSecondsMax = options.answerSecondsMax ?? 30;
    this.#unansweredMax = options.unansweredMax ?? 256;
    this.#streamHeldBytesMax = options.streamHeldBytesMax ?? 2 ** 20;
    const hello: TransportHello = {
      schema_id: "gamecult.model.transport_hello.v1",
      client: options.client ?? "sidecar.ts",
      join: true,
      protocol: 1,
      stream_events: options.streamEvents ?? true,
    };
    this.#hello = canonicalBytes(hello);
  }

  /** A client that the daemon has welcomed. Throws Disconnected, NotADaemon, DaemonError, WhichCaller. */
  static async connect(socketPath: string, options: ConnectOptions = {}): Promise<SidecarClient> {
    const client = new SidecarClient(socketPath, options);
    try {
      await client.#connected();
      client.#chooseCaller();
    } catch (fault) {
      client.close();
      throw fault;
    }
    return client;
  }

  /** Who asks. */
  get caller(): string {
    return this.#caller ?? "";
  }

  /** What the daemon said last about itself and this connection. */
  get welcome(): TransportWelcome | undefined {
    return this.#welcome;
  }

  /** The invocation of a request: invoke, stream and quote take it in place of the request, and send the same bytes. */
  prepare(request: ProviderRequest, options: InvokeOptions = {}): TransportInvocation {
    return newInvocation(this.caller, request, options);
  }

  /** The completed answer. */
  async invoke(request: ProviderRequest | TransportInvocation, options: InvokeOptions = {}): Promise<Result> {
    return resultOf(await this.#begin(this.#invocation(request, options)).answer);
  }

  /** The answer's events as they come, then its result. */
  stream(request: ProviderRequest | TransportInvocation, options: InvokeOptions = {}): Stream {
    const invocation = this.#invocation(request, options);
    const wasAsked = this.#invocations.has(keyOfInvocation(invocation));
    const asked = this.#begin(invocation);
    const { request_id: requestId } = invocation.request;
    const buffer = new EventBuffer(requestId, asked.answer, !wasAsked, this.#streamHeldBytesMax);
    asked.streams.add(buffer);
    return buffer;
  }

  /** What this would be answered now, and cost at most; nothing is sent to a provider. */
  async quote(request: ProviderRequest | TransportInvocation, options: InvokeOptions = {}): Promise<Quote> {
    const invocation = this.#invocation(request, options);
    const quote: TransportQuote = { schema_id: "gamecult.model.transport_quote.v1", invocation };
    const key = keyOfInvocation(invocation);
    const quoted = await this.#inTurn(this.#quotes, key, canonicalBytes(quote));
    return { refusal: quoted.refusal ?? null, worstCaseMicroUsd: quoted.worst_case_micro_usd ?? null };
  }

  /** What the daemon holds, as far as this user may see it. */
  async status(): Promise<TransportStatusReport> {
    const status: TransportStatus = { schema_id: "gamecult.model.transport_status.v1" };
    return await this.#inTurn(this.#statuses, STATUS_KEY, canonicalBytes(status));
  }

  /**
   * The deadline of this running request is now: its own answer says how it ended, usually with a whole charge.
   * Throws Refused (`IdentitySubstitution`) where this user may not be the caller.
   */
  async cancel(requestId: string): Promise<void> {
    const cancel: TransportCancel = {
      schema_id: "gamecult.model.transport_cancel.v1",
      caller_runtime_id: this.caller,
      request_id: id(requestId, "requestId"),
    };
    const frame = canonicalBytes(cancel);
    const asked = this.#invocations.get(keyOf(cancel));
    if (asked?.sends === 0) {
      return asked.reject(new Disconnected(`${requestId} was cancelled before it was sent`, "nothing: it has not run"));
    }
    if (asked !== undefined) asked.cancel = frame; // where the connection is lost, it is said again behind the request
    if (asked !== undefined && this.#socket === undefined) return;
    await this.#connected();
    const isOurs = this.#welcome?.callers.includes(this.caller) ?? true;
    if (!isOurs && asked === undefined) throw new Refused("IdentitySubstitution"); // the daemon would say nothing
    this.#socket?.write(framed(frame));
  }

  /** Ends the connection. What is unanswered is told so; it may go on in the daemon, and the same bytes find it. */
  close(): void {
    this.#closing.abort();
    this.#socket = undefined; // so nobody opens it again
    this.#opened?.destroy();
    this.#failAll(new Disconnected("the client was closed", CLOSED_ADVICE));
  }

  #chooseCaller(): void {
    const callers = this.#welcome?.callers ?? [];
    if (this.#caller === undefined && callers.length !== 1) throw new WhichCaller(callers);
    this.#caller ??= callers[0];
  }

  #invocation(request: ProviderRequest | TransportInvocation, options: InvokeOptions): TransportInvocation {
    if (request.schema_id === "gamecult.model.provider_request.v1") return this.prepare(request, options);
    if (Object.keys(options).length > 0) throw new TypeError("what is prepared takes no options any more");
    return transportInvocation(request, "invocation");
  }

  /** Asks this once: the same bytes again share the answer of those under way. */
  #begin(invocation: TransportInvocation): Unanswered<TransportResult> {
    const key = keyOfInvocation(invocation);
    const frame = canonicalBytes(invocation);
    const asked = this.#invocations.get(key);
    if (asked === undefined) {
      const lifeMs = Math.max(Number(invocation.expires_at_unix_ms) - Date.now(), 0);
      return this.#ask(this.#invocations, key, frame, lifeMs + this.#answerSecondsMax * 1000);
    }
    // Two answers under one id could not be told apart; the daemon would refuse the second one, too.
    if (Buffer.compare(asked.frame, frame) !== 0) throw new Refused("ReplayConflict");
    return asked;
  }

  /** Answers that can't be told apart are waited for one after the other. */
  async #inTurn<Answer>(line: Line<Answer>, key: string, frame: Uint8Array): Promise<Answer> {
    if (this.#unanswered().length + this.#waiting >= this.#unansweredMax) throw new Refused("Capacity");
    this.#waiting += 1;
    try {
      for (let earlier = line.get(key); earlier !== undefined; earlier = line.get(key)) {
        await earlier.answer.catch(() => {});
      }
    } finally {
      this.#waiting -= 1;
    }
    return await this.#ask(line, key, frame, this.#answerSecondsMax * 1000).answer;
  }

  #ask<Answer>(line: Line<Answer>, key: string, frame: Uint8Array, waitMs: number): Unanswered<Answer> {
    if (this.#closing.signal.aborted) throw new Disconnected("the client was closed", CLOSED_ADVICE);
    if (this.#unanswered().length >= this.#unansweredMax) throw new Refused("Capacity");
    const giveUp = (): void => {
      asked.reject(new Disconnected(`no answer in ${Math.round(waitMs / 1000)} s`, NO_ANSWER_ADVICE));
      this.#socket?.destroy(); // so that an answer which comes later is not taken for another's
    };
    const asked = new Unanswered(frame, line, key, setTimeout(giveUp, Math.min(waitMs, TIMER_MS_MAX)));
    if (this.#socket !== undefined) this.#send(this.#socket, asked);
    else this.#connected().catch(() => {}); // which tells all that is unanswered
    return asked;
  }

  #unanswered(): Sent[] {
    return [...this.#invocations.values(), ...this.#quotes.values(), ...this.#statuses.values()];
  }

  #failAll(fault: SidecarError): void {
    for (const asked of this.#unanswered()) asked.reject(fault);
  }

  #send(socket: Socket, asked: Sent): void {
    const bytesMax = this.#welcome?.frame_bytes_max ?? FRAME_BYTES_LIMIT;
    if (asked.frame.length > bytesMax) {
      const told = `a frame of ${asked.frame.length} bytes, and the daemon takes ${bytesMax}`;
      return asked.reject(new DaemonError("frame_size", told));
    }
    asked.sends += 1;
    if (asked.sends > 1) for (const stream of asked.streams) stream.stopLive();
    socket.write(framed(asked.frame));
    if (asked.cancel !== undefined) socket.write(framed(asked.cancel));
  }

  // --- the connection ---

  /** Resolves once there is a connection that was welcomed; else rejects, and all that is unanswered is told. */
  #connected(): Promise<void> {
    if (this.#socket !== undefined) return Promise.resolve();
    this.#opening ??= this.#open()
      .catch((fault: SidecarError) => {
        this.#failAll(fault);
        throw fault;
      })
      .finally(() => (this.#opening = undefined));
    return this.#opening;
  }

  /** Tries until it works, what is wrong won't pass by waiting, or time is up. */
  async #open(): Promise<void> {
    const giveUpAt = performance.now() + this.#reconnectSecondsMax * 1000;
    for (let tries = this.#losses; ; tries += 1) {
      const pauseMs = tries === 0 ? 0 : Math.min(PAUSE_MS_MIN * 2 ** (tries - 1), PAUSE_MS_MAX);
      // Not all clients at the same instant. The rejection of a sleep that is aborted says no more than `closing` does.
      await sleep(pauseMs * (0.5 + Math.random() / 2), undefined, { signal: this.#closing.signal }).catch(() => {});
      if (this.#closing.signal.aborted) throw new Disconnected("the client was closed", CLOSED_ADVICE);
      try {
        return await this.#openOnce(Math.max(giveUpAt - performance.now(), PAUSE_MS_MAX));
      } catch (fault) {
        const passes = fault instanceof SidecarError && fault.retry === "same_bytes";
        if (!passes || performance.now() >= giveUpAt) throw fault;
      }
    }
  }

  /** Opens a connection, says hello, waits for the welcome, and sends what is unanswered. */
  #openOnce(waitMs: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const socket = openSocket({ path: this.#path });
      const splitter = new FrameSplitter();
      let isOver = false;
      const end = (fault: SidecarError): void => {
        if (isOver) return;
        isOver = true;
        clearTimeout(timer);
        socket.destroy();
        if (this.#socket === socket) this.#lost(fault);
        else reject(fault); // without effect where `close` has come first
      };
      const welcomed = (welcome: TransportWelcome): void => {
        if (welcome.protocol !== 1) throw new NotADaemon(`a welcome of protocol ${welcome.protocol}`);
        clearTimeout(timer);
        this.#socket = socket;
        this.#welcome = welcome;
        for (const asked of this.#unanswered()) this.#send(socket, asked);
        resolve();
      };
      const timer = setTimeout(
        () => end(new Disconnected("no welcome came", NO_ANSWER_ADVICE)),
        Math.min(waitMs, this.#answerSecondsMax * 1000, TIMER_MS_MAX),
      );
      this.#opened = socket;
      socket.on("connect", () => socket.write(framed(this.#hello)));
      socket.on("error", (fault: NodeJS.ErrnoException) => end(meaningOf(fault, this.#path)));
      socket.on("close", () => end(new Disconnected("the daemon closed the connection")));
      socket.on("data", (received: Buffer) => {
        try {
          for (const frame of splitter.feed(received)) {
            if (isOver) return;
            const said = parseFromDaemon(frame);
            if (this.#socket === socket) this.#hear(said, frame.length);
            else if (said.schema_id === "gamecult.model.transport_welcome.v1") welcomed(said);
            else throw insteadOfWelcome(said);
          }
        } catch (fault) {
          end(fault instanceof SidecarError ? fault : new NotADaemon(reason(fault)));
        }
      });
    });
  }

  /** The connection is gone: what is unanswered is sent again, but for what can't be helped by that. */
  #lost(fault: SidecarError): void {
    this.#socket = undefined;
    this.#losses += 1;
    if (fault.retry !== "same_bytes") this.#failAll(fault);
    for (const asked of this.#unanswered()) if (asked.sends >= SENDS_MAX) asked.reject(fault);
    if (this.#unanswered().length > 0) this.#connected().catch(() => {});
  }

  /** One frame of the daemon; throws NotADaemon for what answers nothing. */
  #hear(said: FromDaemon, bytes: number): void {
    switch (said.schema_id) {
      case "gamecult.model.transport_result.v1":
        checkReceipt(said);
        return this.#answer(this.#invocations, keyOf(said), said);
      case "gamecult.model.transport_quoted.v1":
        return this.#answer(this.#quotes, keyOf(said), said);
      case "gamecult.model.transport_status_report.v1":
        return this.#answer(this.#statuses, STATUS_KEY, said);
      case "gamecult.model.transport_event.v1": {
        const asked = this.#invocations.get(keyOf(said));
        if (asked === undefined) throw new NotADaemon(`an event of ${said.request_id}, which was not asked for`);
        for (const stream of asked.streams) stream.takeLive(said.event, bytes);
        return;
      }
      case "gamecult.model.transport_error.v1":
        return this.#hearError(said);
      case "gamecult.model.transport_welcome.v1":
        throw new NotADaemon("a second welcome");
    }
  }

  #answer<Answer>(line: Line<Answer>, key: string, answer: Answer): void {
    const asked = line.get(key);
    if (asked === undefined) throw new NotADaemon(`an answer to what was not asked: ${key}`);
    this.#losses = 0;
    asked.resolve(answer);
  }

  #hearError(said: TransportError): void {
    const fault = new DaemonError(said.code, said.message);
    if (CLOSING.has(said.code)) throw fault; // which ends the connection
    if (said.request_id === undefined || said.caller_runtime_id === undefined) {
      return this.#failAll(fault); // it is about one of them, and does not say which
    }
    const key = keyOf({ caller_runtime_id: said.caller_runtime_id, request_id: said.request_id });
    const asked = this.#invocations.get(key) ?? this.#quotes.get(key);
    if (asked === undefined) throw new NotADaemon(`an error about ${said.request_id}, which was not asked for`);
    this.#losses = 0;
    asked.reject(fault);
  }
}

function insteadOfWelcome(said: FromDaemon): SidecarError {
  if (said.schema_id === "gamecult.model.transport_error.v1") return new DaemonError(said.code, said.message);
  return new NotADaemon(`${said.schema_id} where a welcome belongs`);
}

/** A result whose receipt is of another request is no daemon's. */
function checkReceipt(said: TransportResult): void {
  if ("Refused" in said.disposition) return;
  const { receipt } = said.disposition.Transported;
  if (keyOf(receipt) !== keyOf(said)) throw new NotADaemon(`a result of ${said.request_id} with another's receipt`);
}

/** What a fault of the operating system means. */
function meaningOf(fault: NodeJS.ErrnoException, path: string): SidecarError {
  const told = `${path}: ${fault.message}`;
  switch (fault.code) {
    case "EACCES":
    case "EPERM":
      return new Disconnected(told, "join the group of the daemon's socket, or change its socket_mode", "no");
    case "ENOTSOCK":
    case "EPROTOTYPE":
      return new NotADaemon(told);
    default:
      return new Disconnected(told);
  }
}
