/** Holds sidecar.ts to the goldens: node build/check-goldens.js GOLDENS. Says how many vectors held; 1 at a fault. */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { decode } from "@msgpack/msgpack";
import { canonicalBytes, decodeFrame, FrameSplitter, NotADaemon, parseFromDaemon, sha256 } from "./sidecar.ts";

type Piece = { hex: string; times?: number };
type Spelt = string | Piece[];
type Value = {
  name: string;
  value: unknown;
  canonical: Spelt;
  bytes: number;
  sha256: string;
  provider_request_sha256?: string;
};
type Variant = { name: string; frame: Spelt; same_as: string; identity_sha256: string };
type Whole = { bytes: number; sha256: string };
type Stream = { name: string; sent: Spelt; frames: Whole[]; transport_error: string | null };
type Streams = { frame_bytes_max: number; vectors: Stream[] };
type Step = { from: "client" | "server"; bytes_base64: string };

const goldens = process.argv[2] ?? "goldens";
const BIN_MEMBERS = new Set(["state", "response"]);
const FOR_SERVERS_ONLY = /levels|too many/; // bounds of what the daemon takes, which its own frames don't have

// JSON.parse reads numbers as doubles; integers that may not fit become {"$int": digits} first. Strings are left alone.
const LONG = /"(?:[^"\\]|\\.)*"|\d{16,}/g;

function load<T>(...path: string[]): T {
  const source = readFileSync(join(goldens, ...path), "utf8");
  return JSON.parse(source.replace(LONG, (token) => (token.startsWith('"') ? token : `{"$int":"${token}"}`))) as T;
}

function value(spelt: unknown, member = ""): unknown {
  if (Array.isArray(spelt)) return spelt.map((inner) => value(inner));
  if (typeof spelt === "string") return BIN_MEMBERS.has(member) ? new Uint8Array(Buffer.from(spelt, "base64")) : spelt;
  if (spelt === null || typeof spelt !== "object") return spelt;
  if ("$int" in spelt) return BigInt(String(spelt.$int));
  const times = "$times" in spelt ? Number(spelt.$times) : 1;
  if ("$text" in spelt) return String(spelt.$text).repeat(times);
  if ("$base64" in spelt) return new Uint8Array(repeated(Buffer.from(String(spelt.$base64), "base64"), times));
  return Object.fromEntries(Object.entries(spelt).map(([key, inner]) => [key, value(inner, key)]));
}

const repeated = (unit: Uint8Array, times: number): Buffer => Buffer.concat(Array<Uint8Array>(times).fill(unit));
const hex = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex");

function bytes(spelt: Spelt): Buffer {
  if (typeof spelt === "string") return Buffer.from(spelt, "base64");
  return Buffer.concat(spelt.map((piece) => repeated(Buffer.from(piece.hex, "hex"), piece.times ?? 1)));
}

/** The value as `decodeFrame` gives it: without nil, small integers as numbers. */
function decoded(spelt: unknown): unknown {
  if (typeof spelt === "bigint") return spelt <= Number.MAX_SAFE_INTEGER ? Number(spelt) : spelt;
  if (Array.isArray(spelt)) return spelt.map(decoded);
  if (spelt === null || typeof spelt !== "object" || spelt instanceof Uint8Array) return spelt;
  const members = Object.entries(spelt).filter(([, member]) => member !== null);
  return Object.fromEntries(members.map(([key, member]) => [key, decoded(member)]));
}

let held = 0;
function check(name: string, holds: () => void): void {
  try {
    holds();
    held += 1;
  } catch (fault) {
    console.error(`${name}: ${fault instanceof Error ? fault.message : String(fault)}`);
    process.exitCode = 1;
  }
}

const identities = new Map<string, string>();
for (const file of readdirSync(join(goldens, "values"))) {
  const { schema, vectors } = load<{ schema: string; vectors: Value[] }>("values", file);
  const isFromDaemon = /transport_(result|error|welcome|quoted|event|status_report)\.v1/.test(schema);
  for (const vector of vectors) {
    check(`${file}: ${vector.name}`, () => {
      const golden = bytes(vector.canonical);
      const said = value(vector.value);
      const encoded = canonicalBytes(said);
      assert.equal(hex(encoded), vector.sha256);
      assert.ok(golden.equals(encoded), "the canonical bytes differ");
      assert.equal(encoded.length, vector.bytes);
      assert.deepEqual(decodeFrame(golden), decoded(said));
      if (isFromDaemon) assert.deepEqual(parseFromDaemon(golden), decoded(said));
      if (vector.provider_request_sha256 !== undefined) {
        const { request, provider_request_sha256: carried } = said as Record<string, unknown>;
        assert.equal(hex(canonicalBytes(request)), vector.provider_request_sha256);
        assert.deepEqual(sha256(canonicalBytes(request)), carried);
        identities.set(vector.name, vector.sha256);
      }
    });
  }
}

for (const vector of load<{ vectors: Variant[] }>("frames", "variants.json").vectors) {
  check(`variants.json: ${vector.name}`, () => {
    const frame = bytes(vector.frame);
    assert.equal(hex(canonicalBytes(decode(frame, { useBigInt64: true }))), vector.identity_sha256);
    assert.equal(identities.get(vector.same_as), vector.identity_sha256);
    assert.throws(() => decodeFrame(frame), NotADaemon); // no daemon sends it in this layout
  });
}

for (const vector of load<{ vectors: Variant[] }>("frames", "not_strict.json").vectors) {
  if (FOR_SERVERS_ONLY.test(vector.name)) continue;
  check(`not_strict.json: ${vector.name}`, () => assert.throws(() => decodeFrame(bytes(vector.frame)), NotADaemon));
}

const streams = load<Streams>("streams.json");
for (const vector of streams.vectors) {
  const sent = bytes(vector.sent);
  const isBeyond = sent[0] === 0 && sent.length >= 4 && sent.readUInt32BE() > streams.frame_bytes_max;
  if (isBeyond) continue; // beyond the daemon's own bound; a client takes it
  for (const size of [sent.length, 1, 3, 4096].filter((cut) => sent.length / cut < 10_000)) {
    check(`streams.json: ${vector.name}, in pieces of ${size}`, () => {
      const splitter = new FrameSplitter();
      const frames: Uint8Array[] = [];
      const feed = (): void => {
        for (let at = 0; at < sent.length; at += size) {
          for (const frame of splitter.feed(sent.subarray(at, at + size))) frames.push(frame);
        }
      };
      if (vector.transport_error === null) feed();
      else assert.throws(feed, NotADaemon);
      assert.deepEqual(frames.map((frame) => ({ bytes: frame.length, sha256: hex(frame) })), vector.frames);
    });
  }
}

for (const file of readdirSync(join(goldens, "transcripts"))) {
  for (const [at, step] of load<{ steps: Step[] }>("transcripts", file).steps.entries()) {
    if (step.from !== "server") continue;
    check(`${file}: step ${at}`, () => {
      const [frame, ...others] = new FrameSplitter().feed(Buffer.from(step.bytes_base64, "base64"));
      assert.ok(frame !== undefined && others.length === 0);
      const { schema_id: schemaId } = decodeFrame(frame) as { schema_id: string };
      if (!schemaId.startsWith("gamecult.model.operator_")) parseFromDaemon(frame);
    });
  }
}

console.log(`${held} vectors hold`);
